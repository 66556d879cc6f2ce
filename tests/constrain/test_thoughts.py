"""Budgets for thinking: when a block is closed, what may stand in it, and that all modes agree."""

from __future__ import annotations

import pytest

import trifolium
from tiny_engine import write_folder
from trifolium.constrain import Compiler, Thoughts, json_schema, regex

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\\n<think>\\n' }}"
)
MODES = ("ar", "verified", "diffusion")


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("thoughts") / "tiny", chat_template=TEMPLATE, max_positions=900).path
    return trifolium.load(folder, adapter=folder / "adapter.safetensors", dtype="int8")


@pytest.fixture(scope="module")
def compiler(lm):
    return Compiler(lm.tokenizer, lm.tokenizer.eos_ids, lm.model.config.vocab_size)


def ids(lm, text):
    return lm.tokenizer.encode(text, special=False)


def test_the_block_is_closed_when_the_budget_is_spent(lm, compiler):
    guide = compiler.thoughtful(Thoughts(5, opened=True), None)
    (end,) = lm.tokenizer.eos_ids
    for token in ids(lm, "abcde"):
        allowed = guide.after()
        assert token in allowed and end not in allowed and allowed.count > 200
        guide.push(token)
    assert guide.run() == ids(lm, "\n</think>")
    for token in ids(lm, "\n</think>"):
        guide.push(token)
    assert end in guide.after() and guide.after().count > 200 and not guide.ended


def test_paths_look_ahead_and_leave_no_trace(lm, compiler):
    guide = compiler.thoughtful(Thoughts(3, opened=True), None)
    closing = ids(lm, "\n</think>")
    for _ in range(2):
        assert guide.after(ids(lm, "abc")).single == closing[0]
        assert guide.after([*ids(lm, "abc"), *closing]).single is None
        assert guide.after(ids(lm, "ab")).single is None
    guide.push(ids(lm, "x")[0])
    assert guide.after(ids(lm, "ab")).single == closing[0]


@pytest.mark.parametrize("ending", ["</think>", "<tool_call>"])
def test_a_block_that_ends_by_itself_is_left_alone(lm, compiler, ending):
    guide = compiler.thoughtful(Thoughts(20, opened=True), None)
    for token in ids(lm, f"ab{ending}" + "c" * 30):
        guide.push(token)
    assert guide.after().single is None


def test_an_answer_may_open_its_block_itself(lm, compiler):
    guide = compiler.thoughtful(Thoughts(2, opened=False), None)
    for token in ids(lm, "\n<think>ab"):
        guide.push(token)
    assert guide.run() == ids(lm, "\n</think>")
    for text in ("x" * 40, "x<think>" + "a" * 40):
        guide = compiler.thoughtful(Thoughts(2, opened=False), None)
        for token in ids(lm, text):
            guide.push(token)
        assert guide.after().single is None


def test_what_the_answer_follows_besides_is_followed(lm, compiler):
    inner = compiler.guide(regex(r"[a-c]*\n</think>\n[0-9]{2}"))
    guide = compiler.thoughtful(Thoughts(2, opened=True), inner)
    for token in ids(lm, "ab"):
        assert ids(lm, "d")[0] not in guide.after()
        guide.push(token)
    assert guide.run() == ids(lm, "\n</think>\n")


@pytest.mark.parametrize("budget", [0, 1, 9])
def test_all_modes_think_as_long(lm, budget):
    """And no longer: verified is ar under the budget, too."""
    options = {"max_tokens": 60, "thinking_budget": budget}
    answers = [lm.chat("Hello", mode=mode, **options) for mode in MODES]
    for answer in answers:
        head, _, tail = answer.result.text.partition("\n</think>")
        assert answer.result.token_ids[budget : budget + 9] == tuple(ids(lm, "\n</think>")) and tail
        assert answer.reasoning == head.strip("\n") and answer.content == tail.lstrip("\n")
    assert answers[0].result.token_ids == answers[1].result.token_ids
    sampled = [lm.chat("Hello", mode=mode, temperature=1.0, seed=4, **options).result for mode in MODES[:2]]
    assert sampled[0].token_ids == sampled[1].token_ids


def test_tools_after_thoughts(lm):
    tools = [{"type": "function", "name": "now"}]
    turns = [
        lm.chat("Hello", tools=tools, tool_choice="required", mode=mode, max_tokens=300, thinking_budget=4)
        for mode in MODES
    ]
    assert turns[0].result.token_ids == turns[1].result.token_ids
    assert all(turn.reasoning for turn in turns)


def test_a_budget_changes_nothing_for_those_who_do_not_think(lm):
    prompt = ids(lm, "Hello")
    schema = json_schema({"type": "integer", "maximum": 99, "minimum": 10})
    assert lm.generate(prompt, constraint=schema, thinking_budget=0).text == lm.generate(prompt, constraint=schema).text
    plain = lm.generate(prompt, max_tokens=30)
    assert lm.generate(prompt, max_tokens=30, thinking_budget=3).token_ids == plain.token_ids
