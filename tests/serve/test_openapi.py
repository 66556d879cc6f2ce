"""The OpenAPI document, and a short run of what `make fuzz` does with it."""

from __future__ import annotations

import sys
from pathlib import Path

import jsonschema
import pytest

from running_server import running

sys.path.insert(0, str(Path(__file__).parents[1]))
from fuzz import SETTINGS, fuzz


def test_the_document_tells_every_route_and_its_errors(http):
    document = http.get("/openapi.json").json()
    told = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert {("post", "/v1/chat/completions"), ("post", "/v1/completions"), ("get", "/v1/models")} <= told
    for methods in document["paths"].values():
        for operation in methods.values():
            assert operation["summary"] and operation["description"]
            assert {"200", "4XX", "5XX"} <= set(operation["responses"]) and "422" not in operation["responses"]
    body = document["components"]["schemas"]["ChatBody"]
    schema = {**body, "components": document["components"]}
    for example in body["examples"]:
        jsonschema.Draft202012Validator(schema).validate(example)
        assert http.post("/v1/chat/completions", json=example).status_code == 200


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/v1/models/"])
def test_there_is_no_page_that_asks_other_hosts(http, path):
    assert http.get(path).status_code == 404


def test_requests_made_from_the_document_find_no_fault(folder):
    with running(folder, **SETTINGS) as server:
        done = fuzz(server, seconds=12, seed=3, phases="examples,fuzzing")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Failures:" not in done.stdout and "19/19" in done.stdout
        server.wait_until_idle()
