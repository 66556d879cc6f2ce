"""Typed questions over HTTP: both wires through their public clients, equal to the model's own answers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import typesafe_sdk as typesafe

from trifolium.decide import openai_wire, systemone

STATE = "I was billed twice, please help."
QUESTIONS = {
    "spam": {"type": "noul", "instructions": "Is it advertising?"},
    "tone": {"type": "choice", "instructions": "Tone?", "criteria": {"angry": "hostile", "calm": None}},
    "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["can wait", "this week", "today"]},
}
LISTED = [
    {"type": "predicate", "name": "spam", "instructions": "Is it advertising?"},
    {"type": "choice", "name": "tone", "instructions": "Tone?", "choices": [{"value": "angry"}, {"value": True}]},
]
JOINT = {"joint": [{"questions": ["spam", "urgency"], "constraints": [{"if": {"spam": True}, "then": {"urgency": 0}}]}]}


def test_typesafe_clients_get_the_model_s_answers(server, lm):
    retry = typesafe.RetryPolicy(max_retries=0)
    with typesafe.TypeSafeClient(
        api_key="x", base_url=server.url, timeout=60.0, retry=retry, compression=False
    ) as client:
        response = client.system_one(STATE, QUESTIONS, model="tiny")
    expected = lm.answer(systemone.read({"state": STATE, "questions": QUESTIONS}))
    assert response.nouls["spam"].noul == expected["spam"].yes
    assert tuple(response.choices["tone"].probabilities.values()) == expected["tone"].probabilities
    assert response.scores["urgency"].score == expected["urgency"].score


def test_openai_clients_get_the_model_s_answers(server, lm):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        response = client.decisions.create(model="default", input=STATE, questions=LISTED)
    expected = lm.answer(openai_wire.read({"input": STATE, "questions": LISTED}))
    assert response.answers[0].probability == expected["spam"].yes
    assert [one.probability for one in response.answers[1].probabilities] == list(expected["tone"].probabilities)


def test_joint_groups_travel_under_our_key(http, lm):
    body = {"state": STATE, "questions": QUESTIONS, "trifolium": JOINT}
    joint = http.post("/v1/systemone", json=body).json()["joint"][0]
    expected = lm.answer(systemone.read(body)).joint[0]
    assert joint["best"] == dict(expected.best.answers) and joint["probability"] == expected.best.probability
    assert not any(one["answers"]["spam"] and one["answers"]["urgency"] for one in joint["top"])


def test_company_changes_nothing(http, server):
    alone = http.post("/v1/systemone", json={"state": STATE, "questions": {"spam": QUESTIONS["spam"]}}).json()
    body = {"state": STATE, "questions": QUESTIONS}
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40, "temperature": 0}
    with ThreadPoolExecutor(6) as pool:
        chats = [pool.submit(http.post, "/v1/chat/completions", json=chat) for _ in range(3)]
        asked = [pool.submit(http.post, "/v1/systemone", json=body) for _ in range(3)]
        answers = [one.result().json()["answers"] for one in asked]
        assert len({one.result().json()["choices"][0]["message"]["content"] for one in chats}) == 1
    assert all(answer["spam"] == alone["answers"]["spam"] for answer in answers)
    assert answers[0] == answers[1] == answers[2]
    server.wait_until_idle()


@pytest.mark.parametrize(
    "change, place",
    [
        ({"state": None}, ["body", "state"]),
        ({"questions": {}}, ["body", "questions"]),
        ({"questions": {"x": {"type": "box"}}}, ["body", "questions", "x", "type"]),
        ({"nonsense": 1}, ["body", "nonsense"]),
        ({"state": "x" * 300_000}, ["body", "state"]),
    ],
)
def test_systemone_tells_faults_by_their_place(http, change, place):
    answer = http.post("/v1/systemone", json={"state": STATE, "questions": QUESTIONS, **change})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == place and answer.json()["detail"][0]["msg"]


def test_faults_on_the_other_wire_and_of_names(http):
    answer = http.post("/v1/decisions", json={"input": STATE, "questions": []})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "questions"
    body = {"state": STATE, "questions": QUESTIONS, "model": "../secret"}
    unknown = http.post("/v1/systemone", json=body)
    assert unknown.status_code == 404 and "no model" in unknown.json()["detail"][0]["msg"]
    for content in (b"", b"[1", b"[]", b"\xff", b'{"state": NaN}', b"[" * 100_000):
        assert http.post("/v1/systemone", content=content).status_code == 422
        assert http.post("/v1/decisions", content=content).status_code == 400
