"""Both wires, held to the public clients: real requests to a small HTTP server, answers parsed by the clients."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openai
import pytest
import typesafe_sdk as typesafe

from trifolium import LM
from trifolium.decide import openai_wire, systemone
from trifolium.errors import UsageError

STATE = "I was billed twice, please help."
JOINT = {"joint": [{"questions": ["spam", "urgency"], "constraints": [{"if": {"spam": True}, "then": {"urgency": 0}}]}]}


@pytest.fixture(scope="module")
def url(load_tiny) -> Iterator[str]:
    """What a server does with the two paths, and nothing else."""
    lm: LM = load_tiny()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            wire = systemone if self.path == "/v1/systemone" else openai_wire
            text = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                with lock:
                    body, status = wire.write(lm.answer(wire.read(systemone.parse(text))), "tiny"), 200
            except UsageError as error:
                body, status = (systemone.detail(error), 422) if wire is systemone else (openai_wire.error(error), 400)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def system_one(url) -> Iterator[typesafe.TypeSafeClient]:
    retry = typesafe.RetryPolicy(max_retries=0)
    with typesafe.TypeSafeClient(api_key="x", base_url=url, timeout=120.0, retry=retry, compression=False) as client:
        yield client


@pytest.fixture
def decisions(url) -> Iterator[openai.resources.Decisions]:
    with openai.OpenAI(api_key="x", base_url=f"{url}/v1", max_retries=0) as client:
        yield client.decisions


QUESTIONS = {
    "spam": {"type": "noul", "instructions": "Is it advertising?", "criteria": {"true": "It sells.", "false": None}},
    "tone": {"type": "choice", "instructions": {"task": "Tone?"}, "criteria": {"angry": "hostile", "calm": None}},
    "urgency": {"type": "score", "criteria": ["can wait", {"when": "this week"}, "today"]},
}


def test_typesafe_reads_every_kind_of_answer(system_one, load_tiny):
    response = system_one.system_one(STATE, QUESTIONS, model="tiny")
    assert response.model == "tiny" and set(response.answers) == set(QUESTIONS)
    expected = load_tiny().answer(systemone.read({"state": STATE, "questions": QUESTIONS}))
    assert response.nouls["spam"].noul == expected["spam"].yes
    tone = response.choices["tone"]
    assert (
        tone.choice == expected["tone"].value and tuple(tone.probabilities.values()) == expected["tone"].probabilities
    )
    assert list(tone.probabilities) == ["angry", "calm"] and tone.confidence == expected["tone"].confidence
    urgency = response.scores["urgency"]
    assert urgency.score == expected["urgency"].score and set(urgency.probabilities) == {0, 1, 2}
    assert urgency.legend[0] == "can wait"
    assert response.usage.input_tokens > 50 and response.usage.output_tokens == 3


def test_typesafe_states_may_be_json_and_groups_come_along(system_one):
    response = system_one.system_one({"mail": [1, 2]}, QUESTIONS, extra_body={"trifolium": JOINT})
    joint = response.raw_http_response.json()["joint"][0]
    assert set(joint) == {"best", "probability", "top", "unseen_mass", "conditionals"}
    assert set(joint["best"]) == {"spam", "urgency"} and joint["unseen_mass"] == 0.0
    assert not any(one["answers"]["spam"] and one["answers"]["urgency"] for one in joint["top"])
    assert sum(one["probability"] for one in joint["top"]) <= 1.0 + 1e-9


@pytest.mark.parametrize(
    ("body", "place", "message"),
    [
        ({"questions": {"q": {"type": "box", "instructions": "The dog"}}}, "questions.q.type", "box questions"),
        ({"questions": {"q": {"type": "essay"}}}, "questions.q.type", "unknown question type 'essay'"),
        ({"questions": {"q": {"type": "noul"}}}, "questions.q.instructions", "needs instructions"),
        ({"questions": {"q": {"type": "choice", "criteria": {"a": None}}}}, "questions.q.criteria", "1 of the options"),
        ({"questions": {"q": {"type": "score", "criteria": ["a"] * 256}}}, "questions.q.criteria", "256 levels"),
        ({"questions": {"q": {"type": "score", "criteria": {"a": "b"}}}}, "questions.q.criteria", "list of levels"),
        ({"questions": {"q": {"type": "noul", "instructions": "?", "x": 1}}}, "questions.q.x", "unknown key 'x'"),
        ({"questions": {f"q{i}": QUESTIONS["spam"] for i in range(401)}}, "questions", "401 questions"),
        ({"state": ""}, "state", "state is empty"),
        ({"state": "word " * 3000}, "state", "context"),
        ({"assets": {"a": {}}}, "assets", "images"),
        ({"trifolium": {"joint": [{"questions": ["nobody"]}]}}, "trifolium.joint.0.questions.0", "no question"),
        ({"trifolium": {"orders": 0}}, "trifolium.orders", "from 1 to"),
        (
            {"trifolium": {"joint": [{"questions": ["spam"], "constraints": [{"not": {"spam": [True, False]}}]}]}},
            "trifolium.joint.0.constraints",
            "contradict",
        ),
    ],
)
def test_typesafe_is_told_what_is_wrong_and_where(system_one, body, place, message):
    body = {"state": STATE, "questions": QUESTIONS, **body}
    with pytest.raises(typesafe.TypeSafeUnprocessableEntityError, match=message) as caught:
        system_one.system_one("unused", QUESTIONS, extra_body=body)
    (fault,) = caught.value.body["detail"]
    assert set(fault) == {"loc", "msg", "type"} and ".".join(map(str, fault["loc"])) == f"body.{place}"


def test_a_name_that_is_there_twice_is_refused():
    from trifolium.errors import QuestionError

    with pytest.raises(QuestionError, match="'a' is there twice"):
        systemone.parse('{"questions": {"a": 1, "a": 2}}')
    with pytest.raises(QuestionError, match="not JSON"):
        systemone.parse("{")


OPENAI = [
    {"type": "predicate", "name": "spam", "instructions": "It is advertising."},
    {
        "type": "choice",
        "name": "tone",
        "instructions": [{"type": "input_text", "text": "Tone?"}, {"type": "input_json", "data": {"a": 1}}],
        "choices": [{"value": "true", "description": "as text"}, {"value": True}, {"value": "calm"}],
    },
    {"type": "score", "name": "urgency", "instructions": "Urgent?", "levels": [{"label": "low"}, {"label": "high"}]},
    {"type": "predicate", "instructions": "It has no name."},
]


def test_openai_reads_every_kind_of_answer(decisions, load_tiny):
    response = decisions.create(model="tiny", input=STATE, questions=OPENAI)
    expected = load_tiny().answer(openai_wire.read({"input": STATE, "questions": OPENAI})).answers
    spam, tone, urgency, unnamed = response.answers
    assert (spam.type, spam.name, spam.probability) == ("predicate", "spam", expected[0].yes)
    assert [(one.value, type(one.value)) for one in tone.probabilities] == [("true", str), (True, bool), ("calm", str)]
    assert tone.choice == expected[1].value and type(tone.choice) is type(expected[1].value)
    assert [(one.label, one.value) for one in urgency.probabilities] == [("low", 0), ("high", 1)]
    assert urgency.score == expected[2].score and unnamed.name is None
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens and usage.output_tokens == 4
    assert (
        usage.input_tokens_details.cached_tokens + usage.input_tokens_details.cache_write_tokens == usage.input_tokens
    )


def test_openai_input_may_be_a_conversation(decisions):
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Cancel it"}, {"type": "input_json", "data": {}}]},
        {"type": "function_call", "call_id": "1", "name": "cancel", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "done"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Cancelled."}]},
    ]
    text = "user: Cancel it\n{}\ncall cancel: {}\nresult: done\nassistant: Cancelled."
    assert openai_wire.read_input(items) == text
    ours = decisions.create(model="tiny", input=items, questions=OPENAI[:1], extra_body={"trifolium": {"orders": 2}})
    assert ours.answers == decisions.create(
        model="tiny", input=text, questions=OPENAI[:1], extra_body={"trifolium": {"orders": 2}}
    ).answers  # fmt: skip


def test_openai_groups_come_along(decisions):
    response = decisions.create(model="tiny", input=STATE, questions=OPENAI, extra_body={"trifolium": JOINT})
    (joint,) = response.to_dict()["joint"]
    assert joint["unseen_mass"] == 0.0 and not any(
        one["answers"]["spam"] and one["answers"]["urgency"] for one in joint["top"]
    )


@pytest.mark.parametrize(
    ("body", "place", "message"),
    [
        ({"questions": []}, "questions", "1 to 400"),
        ({"questions": OPENAI[:1] * 401}, "questions", "1 to 400"),
        ({"questions": OPENAI[:1] * 2}, "questions[1].name", "two questions are called 'spam'"),
        ({"questions": [{"type": "box", "instructions": "The dog"}]}, "questions[0].type", "box"),
        ({"questions": [{**OPENAI[1], "choices": [{"value": True}]}]}, "questions[0].choices", "1 of the options"),
        ({"questions": [{**OPENAI[1], "choices": [{"value": True}] * 2}]}, "questions[0].choices[1]", "there twice"),
        ({"questions": [{**OPENAI[1], "choices": [{"value": 1}] * 2}]}, "questions[0].choices[0].value", "boolean"),
        ({"questions": [{**OPENAI[2], "levels": [{"label": "a"}] * 256}]}, "questions[0].levels", "256 levels"),
        ({"input": [{"role": "pope", "content": "x"}]}, "input[0].role", "unknown role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type", "images"),
        ({"input": "word " * 3000}, "input", "context"),
        ({"trifolium": {"joints": []}}, "trifolium.joints", "unknown key"),
    ],
)
def test_openai_is_told_what_is_wrong_and_where(decisions, body, place, message):
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        decisions.create(model="tiny", input=STATE, questions=OPENAI, extra_body=body)
    assert caught.value.param == place
