"""Texts with holes: the rest stays byte for byte, and what fills them follows the rules."""

from __future__ import annotations

import httpx
import pytest

from trifolium.serve.fill import FillBody, escaped

STRANGE = 'a.b*c (d) [e] {f} \\g ^$ #-~/ "quoted" \u20ac\n\ttab '


def fill(http: httpx.Client, *parts: object, **fields: object) -> httpx.Response:
    return http.post("/v1/fill", json={"parts": parts, **fields})


@pytest.mark.parametrize("mode", ["ar", "verified", "diffusion"])
def test_everything_given_stays_byte_for_byte(http, mode):
    answer = fill(
        http,
        STRANGE,
        {"hole": "free", "max_length": 9},
        "; ",
        {"hole": "kind", "choices": ["old (1)", "new"], "about": "its age"},
        "!\n",
        {"hole": "code", "regex": "[A-C]{2}-\\d{3}"},
        "",
        trifolium={"mode": mode},
    ).json()
    holes = answer["holes"]
    assert answer["finish_reason"] == "stop" and answer["object"] == "text_fill"
    assert answer["text"] == f"{STRANGE}{holes['free']}; {holes['kind']}!\n{holes['code']}"
    assert 1 <= len(holes["free"]) <= 9 and "\n" not in holes["free"]
    assert holes["kind"] in ("old (1)", "new")
    assert len(holes["code"]) == 6 and holes["code"][2] == "-" and holes["code"][3:].isdecimal()
    assert answer["usage"]["completion_tokens"] > 0


def test_verified_fills_as_ar_does(http):
    parts = ("Dear ", {"hole": "name", "max_length": 12}, ", hello.")
    texts = {mode: fill(http, *parts, trifolium={"mode": mode}).json()["text"] for mode in ("ar", "verified")}
    assert texts["ar"] == texts["verified"]


def test_a_text_that_is_cut_short_names_no_values(http):
    answer = fill(http, "Dear ", {"hole": "name"}, ", hello.", max_tokens=7).json()
    assert answer["finish_reason"] == "length" and answer["holes"] == {}


def test_the_model_is_told_what_the_holes_are():
    hole = {"hole": "x", "about": "a colour", "choices": ["red", "blue"]}
    body = FillBody.model_validate({"parts": ["A ", hole, "."], "instructions": "Be bold."})
    message = body.message()
    assert message.endswith("A [[x]].") and "Be bold." in message and "- x: a colour; one of red, blue" in message
    assert body.values("A red.") == {"x": "red"}


def test_patterns_of_texts_match_just_them():
    assert escaped("a.b") == "a\\.b" and escaped("\u20ac \n") == "\u20ac \n"


@pytest.mark.parametrize(
    "parts, param",
    [
        (["no hole"], None),
        ([{"hole": "x"}, {"hole": "x"}], None),
        ([{"hole": "not a name"}], "parts"),
        ([{"hole": "x", "min_length": 9, "max_length": 3}], "parts"),
        ([{"hole": "x", "choices": ["a"], "regex": "b"}], "parts"),
        ([{"hole": "x", "regex": "(a"}], "parts"),
        ([], "parts"),
    ],
)
def test_what_cannot_be_filled_is_refused(http, parts, param):
    answer = fill(http, *parts)
    assert answer.status_code == 400
    if param is not None:
        assert answer.json()["error"]["param"].startswith(param)
