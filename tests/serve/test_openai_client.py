"""The official Python client of OpenAI's API, against the running server."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest

import trifolium
from tiny_engine import write_folder
from trifolium.serve.infill import gap_prompt

CHAT: list[Any] = [{"role": "user", "content": "Hello there"}]


@pytest.fixture(scope="module")
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chat_equals_the_model(client, lm):
    answer = client.chat.completions.create(model="tiny", messages=CHAT, temperature=0, max_completion_tokens=30)
    alone = lm.generate("Hello there", max_tokens=30)
    [choice] = answer.choices
    assert choice.message.content == alone.text and choice.message.role == "assistant"
    assert choice.finish_reason == alone.finish_reason and choice.logprobs is None
    assert answer.object == "chat.completion" and answer.model == "tiny"
    assert answer.usage.completion_tokens == alone.tokens and answer.usage.prompt_tokens == alone.prompt_tokens
    assert answer.usage.total_tokens == alone.tokens + alone.prompt_tokens
    told = answer.usage.model_extra["trifolium"]
    assert told["mode"] == "verified" and told["passes"] >= 1
    assert told["tokens_per_pass"] == pytest.approx(alone.tokens / told["passes"])


def test_streamed_chat_equals_the_model(client, lm):
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 30}
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=CHAT, stream=True, stream_options={"include_usage": True}, **options
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    alone = lm.generate("Hello there", max_tokens=30)
    assert text == alone.text
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == alone.tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["length"]
    assert len({chunk.id for chunk in chunks}) == 1
    without = list(client.chat.completions.create(model="tiny", messages=CHAT, stream=True, **options))
    assert all(chunk.usage is None for chunk in without) and all(chunk.choices for chunk in without)


def test_stream_helper_gathers_what_the_chunks_say(client, lm):
    text = lm.generate("Hello there", max_tokens=40).text
    asked: dict[str, Any] = {"temperature": 0, "stop": text[8:10]}  # the helper takes no answer that is cut off
    with client.chat.completions.stream(model="tiny", messages=CHAT, **asked) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == text[: text.index(text[8:10])]


def test_async_client_with_many_at_once(server, lm):
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

            async def one(prompt: str) -> str:
                stream = await client.chat.completions.create(
                    model="tiny",
                    messages=[{"role": "user", "content": prompt}],
                    temperature=0,
                    max_tokens=15,
                    stream=True,
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*(one(f"Number {i}") for i in range(12)))

    assert asyncio.run(ask()) == [lm.generate(f"Number {i}", max_tokens=15).text for i in range(12)]


def test_choices_differ_and_seeds_repeat_them(client):
    def ask(seed: int | None) -> list[str]:
        answer = client.chat.completions.create(model="tiny", messages=CHAT, n=3, seed=seed, max_tokens=12)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert answer.usage.completion_tokens <= 36
        return [choice.message.content for choice in answer.choices]

    first = ask(5)
    assert len(set(first)) == 3, "each choice has its own noise"
    assert ask(5) == first and ask(-5) != first
    assert ask(6)[:2] == first[1:], "choice i is sampled with seed + i"
    assert ask(None) != ask(None), "without a seed, each request has a fresh one"


def test_streamed_choices_equal_those_at_once(client):
    options: dict[str, Any] = {"model": "tiny", "messages": CHAT, "n": 3, "seed": 8, "max_tokens": 12}
    texts = ["", "", ""]
    ended = []
    for chunk in client.chat.completions.create(stream=True, **options):
        [choice] = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            ended.append(choice.index)
    assert sorted(ended) == [0, 1, 2]
    assert texts == [choice.message.content for choice in client.chat.completions.create(**options).choices]


def test_logprobs_are_the_models(client, lm):
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 10}
    answer = client.chat.completions.create(model="tiny", messages=CHAT, logprobs=True, top_logprobs=3, **options)
    alone = lm.generate("Hello there", logprobs=3, **options)
    content = answer.choices[0].logprobs.content
    assert [one.logprob for one in content] == [one.logprob for one in alone.logprobs]
    assert [bytes(one.bytes) for one in content] == [lm.tokenizer.token_bytes(token) for token in alone.token_ids]
    for told, own in zip(content, alone.logprobs, strict=True):
        assert [(bytes(t.bytes), t.logprob) for t in told.top_logprobs] == [
            (lm.tokenizer.token_bytes(token), logprob) for token, logprob in own.top
        ]
        assert told.top_logprobs[0].logprob == told.logprob, "greedy takes the likeliest"
        assert math.exp(told.logprob) <= 1
    streamed = []
    for chunk in client.chat.completions.create(
        model="tiny", messages=CHAT, logprobs=True, top_logprobs=3, stream=True, **options
    ):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert [(one.token, one.logprob) for one in streamed] == [(one.token, one.logprob) for one in content]
    bare = client.chat.completions.create(model="tiny", messages=CHAT, logprobs=True, **options)
    assert all(one.top_logprobs == [] for one in bare.choices[0].logprobs.content)


def test_stop_strings_end_the_answer_before_them(client, lm):
    text = lm.generate("Hello there", max_tokens=40).text
    stop = text[8:10]
    for given in (stop, [stop, "never"]):
        answer = client.chat.completions.create(model="tiny", messages=CHAT, temperature=0, max_tokens=40, stop=given)
        assert answer.choices[0].message.content == text[: text.index(stop)]
        assert answer.choices[0].finish_reason == "stop"


def test_bias_and_penalties_reach_the_sampler(client, lm):
    asked = {"logit_bias": {"65": 100}, "max_tokens": 8, "temperature": 0}
    answer = client.chat.completions.create(model="tiny", messages=CHAT, **asked)
    favourite = lm.tokenizer.decode([65])
    assert answer.choices[0].message.content == favourite * 8
    answer = client.chat.completions.create(model="tiny", messages=CHAT, **asked, frequency_penalty=2.0, n=1)
    alone = lm.generate("Hello there", logit_bias={65: 100.0}, max_tokens=8, frequency_penalty=2.0)
    assert answer.choices[0].message.content == alone.text
    answer = client.chat.completions.create(
        model="tiny", messages=CHAT, temperature=0.7, seed=3, presence_penalty=1.5, top_p=0.8, max_tokens=20
    )
    alone = lm.generate("Hello there", temperature=0.7, seed=3, presence_penalty=1.5, top_p=0.8, max_tokens=20)
    assert answer.choices[0].message.content == alone.text


def test_content_parts_and_the_developer_role(client, lm):
    parts: list[Any] = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]
    messages: list[Any] = [{"role": "developer", "content": "Be brief"}, {"role": "user", "content": parts}]
    answer = client.chat.completions.create(model="tiny", messages=messages, temperature=0, max_tokens=12)
    alone = lm.generate("Hello there", system="Be brief", max_tokens=12)
    assert answer.choices[0].message.content == alone.text
    # What an answer looks like can be sent back as it is.
    back = [*messages, answer.choices[0].message.model_dump(), {"role": "user", "content": "Go on"}]
    assert client.chat.completions.create(model="tiny", messages=back, max_tokens=4).choices


def test_extensions_travel_under_one_key(client, lm):
    for mode in ("ar", "diffusion", "verified"):
        answer = client.chat.completions.create(
            model="tiny", messages=CHAT, temperature=0, max_tokens=16, extra_body={"trifolium": {"mode": mode}}
        )
        assert answer.choices[0].message.content == lm.generate("Hello there", max_tokens=16, mode=mode).text
        assert answer.usage.model_extra["trifolium"]["mode"] == mode


def test_fields_that_change_nothing(client):
    options: dict[str, Any] = {"model": "tiny", "messages": CHAT, "temperature": 0, "max_tokens": 8}
    ignored: dict[str, Any] = {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}
    ignored |= {"parallel_tool_calls": True, "response_format": {"type": "text"}, "reasoning_effort": "low"}
    plain, with_them = (client.chat.completions.create(**options, **more) for more in ({}, ignored))
    assert plain.choices == with_them.choices


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"functions": [{"name": "f", "parameters": {}}]}, "functions"),
        ({"response_format": {"type": "poem"}}, "response_format"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "content"),
        ({"messages": [{"role": "function", "content": "4", "name": "f"}]}, "messages.0"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"messages": []}, "messages"),
        ({"extra_body": {"temprature": 1}}, "temprature"),
        ({"extra_body": {"trifolium": {"mode": "fast"}}}, "trifolium.mode"),
        ({"logit_bias": {"100000": 1}}, None),
    ],
)
def test_what_cannot_be_done_is_said_with_its_field(client, asked, field):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "tiny", "messages": CHAT, **asked})
    error = caught.value
    assert error.type == "invalid_request_error" and len(error.message) > 20
    assert error.param is None if field is None else field in error.param
    assert error.request_id.startswith("req_")


def test_errors_become_the_clients_exceptions(client):
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-9' here; known: tiny"):
        client.chat.completions.create(model="gpt-9", messages=CHAT)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")
    with pytest.raises(openai.BadRequestError, match="context of 9000"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x" * 9100}])
    with pytest.raises(openai.BadRequestError, match="empty"):
        client.completions.create(model="tiny", prompt="")


def test_models(client):
    listed = client.models.list()
    assert [model.id for model in listed] == ["tiny"]
    model = client.models.retrieve("tiny")
    assert model.object == "model" and model.model_extra["max_model_len"] == 9000
    for alias in ("default", "trifolium"):
        assert client.chat.completions.create(model=alias, messages=CHAT, max_tokens=1).model == "tiny"


def test_completions_of_texts_and_ids(client, lm):
    ids = lm.tokenizer.encode("abc", special=False)
    alone = lm.generate(ids, max_tokens=16)
    for prompt in ("abc", ids):
        answer = client.completions.create(model="tiny", prompt=prompt, temperature=0)
        assert answer.choices[0].text == alone.text, "16 tokens unless more are asked for"
        assert answer.usage.prompt_tokens == 3
    others = lm.generate(lm.tokenizer.encode("xyz", special=False), max_tokens=16)
    lists: list[Any] = [["abc", "xyz"], [ids, lm.tokenizer.encode("xyz", special=False)]]
    for prompt in lists:
        answer = client.completions.create(model="tiny", prompt=prompt, temperature=0)
        assert [choice.text for choice in answer.choices] == [alone.text, others.text]
        assert answer.usage.prompt_tokens == 6 and answer.usage.completion_tokens == alone.tokens + others.tokens
    streamed = ["", ""]
    for chunk in client.completions.create(model="tiny", prompt=["abc", "xyz"], temperature=0, stream=True, echo=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == ["abc" + alone.text, "xyz" + others.text]


def test_completions_with_logprobs(client, lm):
    answer = client.completions.create(model="tiny", prompt="abc", temperature=0, max_tokens=6, logprobs=2)
    told = answer.choices[0].logprobs
    alone = lm.generate(lm.tokenizer.encode("abc", special=False), max_tokens=6, logprobs=2)
    assert told.token_logprobs == [one.logprob for one in alone.logprobs]
    assert len(told.tokens) == len(told.text_offset) == len(told.top_logprobs) == alone.tokens
    assert all(1 <= len(top) <= 2 for top in told.top_logprobs)
    for asked in ({"best_of": 3}, {"echo": True, "logprobs": 1}, {"echo": True, "suffix": "end"}):
        with pytest.raises(openai.BadRequestError, match=next(iter(asked))):
            client.completions.create(model="tiny", prompt="abc", **asked)


def test_a_suffix_asks_for_what_belongs_between(client, lm):
    """The tiny model has no tokens for it: it is asked for the whole text, and stopped where it comes to the suffix."""
    answer = client.completions.create(model="tiny", prompt="def f(", suffix="):\n", temperature=0, max_tokens=9)
    ids, ends = gap_prompt(lm, "def f(", "):\n")
    assert ends == ("):\n",) and lm.tokenizer.decode(ids).endswith("assistant\ndef f(")
    assert answer.choices[0].text == lm.generate(ids, max_tokens=9).text
    written = lm.generate(ids, max_tokens=30).text
    cut = client.completions.create(model="tiny", prompt="def f(", suffix=written[4:9], temperature=0, max_tokens=30)
    asked = lm.generate(gap_prompt(lm, "def f(", written[4:9])[0], stop=written[4:9], max_tokens=30)
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == (asked.text, asked.finish_reason)
    with pytest.raises(openai.BadRequestError, match="suffix"):
        client.completions.create(model="tiny", prompt=[1, 2], suffix="x")


def test_models_with_tokens_for_it_are_asked_with_them(tmp_path):
    marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    folder = write_folder(tmp_path / "tiny", more_specials=marks).path
    model = trifolium.load(folder, adapter=None, dtype="float32")
    ids, ends = gap_prompt(model, "a", "<|fim_middle|>b")
    assert model.tokenizer.decode(ids) == "<|fim_prefix|>a<|fim_suffix|><|fim_middle|>b<|fim_middle|>" and ends == ()
    assert sum(token in model.tokenizer.special_ids for token in ids) == 3


def test_a_failing_list_of_prompts_starts_none_of_them(client, server):
    prompts: list[Any] = [[1, 2, 3], [4, 100_000]]
    with pytest.raises(openai.BadRequestError, match="outside the vocabulary"):
        client.completions.create(model="tiny", prompt=prompts, max_tokens=5000)
    server.wait_until_idle()


def test_tokens_there_and_back(http, lm):
    text = "Hé <|im_end|> ☘"
    told = http.post("/tokenize", json={"content": text, "with_pieces": True}).json()
    ids = [token["id"] for token in told["tokens"]]
    assert ids == lm.tokenizer.encode(text, special=False) and told["count"] == len(ids)
    assert http.post("/detokenize", json={"tokens": ids}).json() == {"content": text}
    special = http.post("/tokenize", json={"content": "<|im_end|>", "add_special": True}).json()
    assert special["tokens"] == [257] and json.dumps(special)
    assert http.post("/detokenize", json={"tokens": [-1]}).status_code == 400
