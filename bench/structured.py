"""Structured answers: are they always valid, and how fast are they against AR that jumps over literals?

    python bench/structured.py race [--model smollm2-135m] [--rounds 3]
    python bench/structured.py valid [--schemas 2000] [--documents 10000]

`race` answers the same questions under the same schemas in every mode, taking turns. The baseline is our own AR with
jump-ahead: `mode="ar", drafts="forced"`. `valid` lets the packaged nano model, and random models that want to write
garbage, answer under random schemas in every mode, and checks each answer with jsonschema.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

OUT = Path(__file__).parent / "out"

NURSE = (
    "Anna Berg, 34, is a nurse from Oslo. She speaks Norwegian and English, has two children, owns a red bicycle, and "
    "can be reached at anna.berg@example.com."
)
REVIEW = (
    "The phone arrived a week late and the box was torn. The screen is gorgeous and the battery lasts two days, but "
    "the camera is poor in the dark. I'd still recommend it to a friend."
)
ORDER = "Hi, this is Tom Lee. Please send 3 blue mugs and 12 white plates to 5 Harbour Road, Leith, by Friday."


def obj(**properties: Any) -> dict[str, Any]:
    """A closed object, all of whose members are required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT = {"type": "string", "maxLength": 40}
YES = {"type": "boolean"}
RATING = {"type": "integer", "minimum": 1, "maximum": 5}
COUNT = {"type": "integer", "minimum": 0, "maximum": 99}

TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "person": (
        f"Extract the person's data as JSON.\n\n{NURSE}",
        obj(name=TEXT, age=COUNT, job=TEXT, city=TEXT, email={"type": "string", "pattern": "^[a-z.]{1,20}@[a-z.]+$"}),
    ),
    "facts": (
        f"Answer each question about the text with true or false, as JSON.\n\n{NURSE}",
        obj(is_nurse=YES, lives_in_norway=YES, has_children=YES, owns_a_car=YES, speaks_french=YES, over_thirty=YES),
    ),
    "review": (
        f"Judge the review, as JSON.\n\n{REVIEW}",
        obj(
            sentiment={"enum": ["positive", "mixed", "negative"]},
            recommended=YES,
            topics={
                "type": "array",
                "items": {"enum": ["delivery", "packaging", "screen", "battery", "camera", "price"]},
                "minItems": 3,
                "maxItems": 3,
            },
        ),
    ),
    "ratings": (
        f"Rate each aspect from 1 (bad) to 5 (good), as JSON.\n\n{REVIEW}",
        obj(delivery=RATING, packaging=RATING, screen=RATING, battery=RATING, camera=RATING, overall=RATING),
    ),
    "order": (
        f"Turn the message into an order, as JSON.\n\n{ORDER}",
        obj(
            customer=TEXT,
            items={
                "type": "array",
                "items": obj(product=TEXT, colour={"enum": ["blue", "white", "red"]}, quantity=COUNT),
                "minItems": 2,
                "maxItems": 2,
            },
            address=obj(street=TEXT, town=TEXT),
        ),
    ),
    "call": (
        "Call the tool for: what's the weather in Paris tomorrow, in Celsius?",
        obj(
            name={"const": "get_weather_forecast"},
            arguments=obj(
                location=TEXT, unit={"enum": ["celsius", "fahrenheit"]}, days_ahead=RATING, include_wind_speed=YES
            ),
        ),
    ),
}

MODES: dict[str, dict[str, Any]] = {
    "ar, a token a pass": {"mode": "ar"},
    "ar with jump-ahead": {"mode": "ar", "drafts": "forced"},
    "verified": {"mode": "verified"},
    "verified, rows free": {"mode": "verified", "free_rows": True},
    "diffusion": {"mode": "diffusion"},
    "diffusion, rows free, block 24": {"mode": "diffusion", "block_size": 24, "free_rows": True},
    "diffusion, block 24, threshold 0.6": {"mode": "diffusion", "block_size": 24, "threshold": 0.6},
}
BASE = "ar with jump-ahead"

BATCH = 8
"""Schemas whose documents are written together."""


def race(options: argparse.Namespace) -> None:
    """Time per answer, by mode."""
    import trifolium

    lm = trifolium.load(options.model)
    results: dict[str, list[tuple[str, Any, Any]]] = {name: [] for name in MODES}
    for number in range(options.rounds + 1):
        for task, (prompt, schema) in TASKS.items():
            for name, settings in MODES.items():
                result = lm.generate(prompt, schema=schema, max_tokens=160, **settings)
                if number:  # the first round warms up
                    results[name].append((task, result, result.parsed if result.complete else None))
    truth = {task: parsed for task, _, parsed in results[BASE]}
    base = statistics.mean(r.seconds for _, r, _ in results[BASE])
    modes = []
    for name, rows in results.items():
        n = len(rows)
        seconds = statistics.mean(r.seconds for _, r, _ in rows)
        ratios = sorted(_mean(results[BASE], task) / _mean(rows, task) for task in TASKS)
        modes.append(
            {
                "mode": name,
                "tokens": sum(r.tokens for _, r, _ in rows) / n,
                "passes": sum(r.passes for _, r, _ in rows) / n,
                "ms": seconds * 1e3,
                "against_base": base / seconds,
                "least": ratios[0],
                "most": ratios[-1],
                "same_values": statistics.mean(_share(truth[task], parsed) for task, _, parsed in rows),
            }
        )
    floor = statistics.mean(_one_pass(lm, r.token_ids) for _, r, _ in results[BASE])
    facts = {"tasks": len(TASKS), "rounds": options.rounds, "model": lm.name, "dtype": lm.dtype}
    _keep("structured_race", {**facts, "one_pass_ms": floor * 1e3, "modes": modes})


def _keep(part: str, found: dict[str, Any]) -> None:
    """Print what was found, and leave it where the page looks for it."""
    text = json.dumps(found, indent=2)
    print(text)
    OUT.mkdir(exist_ok=True)
    (OUT / f"{part}.json").write_text(text + "\n")


def _one_pass(lm: Any, tokens: tuple[int, ...]) -> float:
    """Seconds of a pass that holds all tokens of an answer: what no mode can go below."""
    import torch

    from trifolium.engine.plan import Plan
    from trifolium.engine.runner import Runner

    runner, plan = Runner(lm.model), Plan(tokens, 1)
    with torch.inference_mode():
        started = time.perf_counter()
        runner.run([(lm.model.new_state(), plan)])
        return time.perf_counter() - started


def _mean(rows: list[tuple[str, Any, Any]], task: str) -> float:
    return statistics.mean(r.seconds for name, r, _ in rows if name == task)


def _share(truth: Any, got: Any) -> float:
    """Share of the leaves of one answer that the other has in the same place."""
    wanted, found = dict(_leaves(truth)), dict(_leaves(got))
    return sum(found.get(place) == value for place, value in wanted.items()) / max(1, len(wanted))


def _leaves(value: Any, place: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in _leaves(inner, f"{place}/{key}")]
    if isinstance(value, list):
        return [leaf for i, inner in enumerate(value) for leaf in _leaves(inner, f"{place}/{i}")]
    return [(place, repr(value))]


def valid(options: argparse.Namespace) -> None:
    """Random schemas, answered in every mode; every complete answer is validated."""
    import jsonschema
    from hypothesis import HealthCheck, Phase, given, seed, settings

    import trifolium
    from random_schemas import SCHEMAS
    from structured_engine import json_model, json_tokenizer
    from trifolium.config import DecodeConfig, SamplingParams
    from trifolium.constrain import json_schema
    from trifolium.engine import Engine, Request

    schemas: list[dict[str, Any]] = []

    @seed(options.seed)
    @settings(
        max_examples=options.schemas,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(SCHEMAS)
    def collect(schema: dict[str, Any]) -> None:
        schemas.append(schema)

    collect()
    nano = trifolium.load("nano", dtype="int8")
    engines = [Engine(json_model(seed=i), json_tokenizer(), max_running=16) for i in range(3)]
    engines.append(Engine(nano.model, nano.tokenizer, max_running=16))
    rng = random.Random(options.seed)
    counts: Counter[str] = Counter()
    each = -(-options.documents // len(schemas))
    started = time.perf_counter()
    for first in range(0, len(schemas), BATCH):  # together, as a server would: every answer has its own constraint
        asked = []
        for number, schema in enumerate(schemas[first : first + BATCH], first):
            for i in range(each):
                engine = engines[(number + i) % len(engines)]
                prompt = [1 + rng.randrange(200)]
                sampling = SamplingParams(temperature=rng.choice([0.0, 1.0]), seed=rng.randrange(2**32))
                handles = {}
                for mode in ("ar", "verified") if i % 2 else ("diffusion",):
                    shape = {"block_size": rng.choice([None, 4, 16]), "threshold": rng.choice([0.0, 0.5, 0.9])}
                    decode = DecodeConfig(mode=mode, max_tokens=120, **shape)
                    handles[mode] = engine.add(Request(prompt, sampling, decode, json_schema(schema)))
                asked.append((schema, handles))
        for engine in engines:
            while engine.step():
                pass
        for schema, handles in asked:
            results = {mode: handle.result for mode, handle in handles.items()}
            for mode, result in results.items():
                counts[f"{mode}, {result.finish_reason}"] += 1
                if result.complete:
                    try:
                        jsonschema.validate(json.loads(result.text), schema)
                    except (ValueError, jsonschema.ValidationError) as error:
                        counts["INVALID"] += 1
                        print("invalid:", json.dumps(schema), repr(result.text), str(error).splitlines()[0])
            if len({result.token_ids for result in results.values()}) > 1:
                counts["verified differs from ar"] += 1
        print(f"\r{first + BATCH} schemas, {sum(counts.values())} documents", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    seconds = time.perf_counter() - started
    _keep("structured_valid", {"schemas": len(schemas), "seconds": seconds, "counts": dict(sorted(counts.items()))})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    racing = commands.add_parser("race")
    racing.add_argument("--model", default="smollm2-135m")
    racing.add_argument("--rounds", type=int, default=3)
    racing.set_defaults(run=race)
    validating = commands.add_parser("valid")
    validating.add_argument("--schemas", type=int, default=2000)
    validating.add_argument("--documents", type=int, default=10_000)
    validating.add_argument("--seed", type=int, default=0)
    validating.set_defaults(run=valid)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
