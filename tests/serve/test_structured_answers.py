"""Schemas, patterns, grammars and choices over HTTP: what comes out follows them, in every API and mode."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel

HELLO = [{"role": "user", "content": "Hello there"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["new", "ol\u00e9"]},
        "count": {"type": "integer"},
    },
    "required": ["name", "kind", "count"],
    "additionalProperties": False,
}
MODES = ("ar", "verified", "diffusion")


class Pet(BaseModel):
    species: Literal["cat", "dog"]
    tame: bool


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def chat(http: httpx.Client, **fields: Any) -> str:
    answer = http.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 120, "temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    return str(choice["message"]["content"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("temperature", [0, 1])
def test_chat_answers_follow_a_schema(http, mode, temperature):
    asked = {"type": "json_schema", "json_schema": {"name": "pet", "strict": True, "schema": SCHEMA}}
    text = chat(http, response_format=asked, temperature=temperature, seed=3, trifolium={"mode": mode})
    jsonschema.validate(json.loads(text), SCHEMA)


def test_the_answer_is_the_model_s_under_the_schema(http, lm):
    asked = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA}}
    assert chat(http, response_format=asked) == lm.generate(HELLO, schema=SCHEMA, max_tokens=120).text


def test_any_object(http):
    format_ = {"type": "json_object"}
    answer = http.post(
        "/v1/chat/completions", json={"messages": HELLO, "max_tokens": 40, "response_format": format_, "temperature": 0}
    ).json()["choices"][0]
    assert answer["message"]["content"].startswith("{")
    if answer["finish_reason"] == "stop":
        assert isinstance(json.loads(answer["message"]["content"]), dict)


def test_guided_fields(http):
    assert re.fullmatch(r"[a-c]{3}-\d\d", chat(http, guided_regex=r"[a-c]{3}-\d\d"))
    assert chat(http, guided_choice=["yes", 'n"o', "per\nhaps"]) in ("yes", 'n"o', "per\nhaps")
    assert re.fullmatch(r"(ab)+c", chat(http, guided_grammar='root ::= "ab" ("ab")? "c"'))
    jsonschema.validate(json.loads(chat(http, guided_json=SCHEMA)), SCHEMA)
    text = http.post(
        "/v1/completions", json={"prompt": "A", "guided_regex": "b{4}", "max_tokens": 20, "temperature": 0}
    ).json()["choices"][0]["text"]
    assert text == "bbbb"


def test_openai_clients_parse_into_models(client):
    parsed = client.chat.completions.parse(
        model="tiny", messages=HELLO, response_format=Pet, temperature=0, max_completion_tokens=60
    )
    assert isinstance(parsed.choices[0].message.parsed, Pet)
    response = client.responses.parse(model="tiny", input="Hello", text_format=Pet, temperature=0, max_output_tokens=60)
    assert isinstance(response.output_parsed, Pet)


def test_anthropic_clients_get_what_their_schema_says(server):
    schema = {**Pet.model_json_schema(), "additionalProperties": False}
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        answer = client.messages.create(
            model="tiny",
            max_tokens=60,
            messages=HELLO,
            output_config={"format": {"type": "json_schema", "schema": schema}},
            extra_body={"temperature": 0},
        )
    assert answer.stop_reason == "end_turn"
    Pet.model_validate_json(answer.content[0].text)


def test_streams_bring_the_same_and_nothing_pretends_to_be_complete(client, http):
    asked = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA}}
    chunks = client.chat.completions.create(
        model="tiny", messages=HELLO, response_format=asked, temperature=0, max_tokens=120, stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == chat(http, response_format=asked)
    cut = client.chat.completions.create(
        model="tiny", messages=HELLO, response_format=asked, temperature=0, max_tokens=5
    )
    assert cut.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": False}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_regex": "a(?=b)"}, "guided_regex"),
        ({"guided_grammar": "start: undefined_rule"}, "guided_grammar"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a"], "guided_regex": "a"}, "guided_choice"),
        ({"guided_json": {"type": "array", "minItems": 10**9}}, "guided_json"),
    ],
)
def test_constraints_at_fault_name_their_field(http, fields, param):
    answer = http.post("/v1/chat/completions", json={"messages": HELLO, **fields})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param
