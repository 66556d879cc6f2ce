"""Tool calls that never break: turns of a trained model and of one that knows nothing, counted.

    python bench/tool_calls.py [--turns 1000] [--model smollm2-135m] [--random-turns 1000]

Every turn gets some of the tools below, a request that may or may not fit them, and a mode, choice and temperature in
turn. A turn that ended by itself must not be empty, and every call must name a tool that is there, with arguments that
jsonschema accepts. Prints JSON and writes bench/out/tool_calls.json.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

OUT = Path(__file__).parent / "out" / "tool_calls.json"
MODES = ("verified", "diffusion", "ar")


def tool(name: str, about: str, required: list[str], **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


TEXT = {"type": "string", "maxLength": 60}
TOOLS = [
    tool("get_weather", "Weather of a city", ["city"], city=TEXT, unit={"enum": ["celsius", "fahrenheit"]}),
    tool("send_mail", "Send a mail", ["to", "text"], to=TEXT, text=TEXT, urgent={"type": "boolean"}),
    tool("convert", "Convert money", ["amount", "into"], amount={"type": "number"}, into={"enum": ["EUR", "JPY"]}),
    tool("book", "Book seats", ["seats", "day"], seats={"type": "integer", "minimum": 1, "maximum": 9},
         day={"type": "string", "format": "date"}, names={"type": "array", "items": TEXT, "maxItems": 4}),
    tool("math.area", "Area of a rectangle", ["w", "h"], w={"type": "number"}, h={"type": "number"}),
    tool("now", "The time", []),
    tool("find", "Search notes", ["query"], query={"anyOf": [TEXT, {"type": "null"}]},
         within={"type": "object", "required": ["from"],
                 "properties": {"from": TEXT, "tags": {"type": "array", "items": TEXT, "maxItems": 2}}}),
]  # fmt: skip
REQUESTS = [
    "How warm is it in Lisbon today?",
    "Tell Nora that the train is late.",
    "What are 12.50 dollars in yen?",
    "Two seats on the third of May, please.",
    "How large is a room of 4 by 5.5 metres?",
    "What time is it?",
    "Where did I write about tulips?",
    "Tell me a joke.",
    "",
]


def count(lm: Any, turns: int, limit: int) -> dict[str, Any]:
    """What came out of so many turns."""
    import jsonschema

    found: Counter[str] = Counter()
    chance = random.Random(0)
    waiting: list[tuple[Any, Any, Any, str]] = []
    started = time.perf_counter()
    for seed in range(turns):
        tools = chance.sample(TOOLS, chance.randint(1, len(TOOLS)))
        named = {"type": "function", "function": {"name": tools[0]["function"]["name"]}}
        choice = ("auto", "required", named, "auto", "none")[seed % 5]
        request, use = lm.request(
            [{"role": "user", "content": chance.choice(REQUESTS)}],
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=seed % 3 > 0,
            mode=MODES[seed % 7 % 3],
            temperature=(0.0, 1.0)[seed % 2],
            seed=seed,
            max_tokens=limit,
        )
        waiting.append((lm.engine.add(request), request, use, choice if isinstance(choice, str) else "named"))
        if len(waiting) < 16 and seed + 1 < turns:
            continue
        while not all(handle.done for handle, *_ in waiting):
            lm.engine.step()
        for handle, asked, use, kind in waiting:
            turn = lm.reader(asked.prompt, use).turn(handle.result)
            schemas = {one.name: one.parameters for one in use.callable}
            ended = turn.finish_reason in ("stop", "tool_calls")
            found["turns"] += 1
            found[f"finish: {turn.finish_reason}"] += 1
            found["calls"] += len(turn.calls)
            found["empty turns"] += ended and not turn.calls and not turn.content.strip()
            found["missing calls"] += ended and kind in ("required", "named") and not turn.calls
            found["unwanted calls"] += kind == "none" and bool(turn.calls)
            for call in turn.calls:
                if call.name not in schemas:
                    found["unknown tools"] += 1
                elif not jsonschema.Draft202012Validator(schemas[call.name]).is_valid(call.values):
                    found["invalid calls"] += 1
        waiting = []
        print(f"\r{found['turns']} turns, {found['calls']} calls", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    faults = ("empty turns", "missing calls", "unwanted calls", "unknown tools", "invalid calls")
    return {"model": lm.name, "seconds": time.perf_counter() - started, **dict.fromkeys(faults, 0), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--random-turns", type=int, default=1000)
    parser.add_argument("--limit", type=int, default=120, help="tokens of a turn")
    options = parser.parse_args()

    import trifolium
    from tiny_engine import write_folder

    rows = [count(trifolium.load(options.model), options.turns, options.limit)] if options.turns else []
    with tempfile.TemporaryDirectory() as folder:
        path = write_folder(Path(folder) / "random", max_positions=4000).path
        lm = trifolium.load(path, adapter=path / "adapter.safetensors", dtype="int8")
        rows.append(count(lm, options.random_turns, 3 * options.limit))
    print(json.dumps(rows, indent=2))
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
