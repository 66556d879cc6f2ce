"""What a model can do with tools: items of the Berkeley Function Calling Leaderboard, scored by their answers.

    python bench/skills.py [--model smollm2-135m] [--skills FILE] [--modes verified diffusion ar] [--share 1.0]

200 items of `simple_python` and 100 each of `multiple`, `parallel` and `irrelevance`, evenly from the files of the
package bfcl-eval (2026.3.23; `pip install --no-deps bfcl-eval==2026.3.23`, nothing of it is here). A call is right if
its function is, every argument has one of the values that the answer lists, and those without one are optional; a turn
is right if its calls are, in any order, and for `irrelevance` if it has none. Finished items are kept in
bench/out/skills.jsonl, so that an ended run goes on; the summary goes to bench/out/skills.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import trifolium
from trifolium import LM
from trifolium.errors import ConstraintError, ToolError

PACKAGE = "bfcl-eval==2026.3.23"
COUNTS = {"simple_python": 200, "multiple": 100, "parallel": 100, "irrelevance": 100}
OUT = Path(__file__).parent / "out"
AT_ONCE = 12
TYPES = {"dict": "object", "float": "number", "tuple": "array"}
IGNORED = str.maketrans("", "", " ,./-_*^()")


def data() -> Path:
    """The folder of the package's files."""
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"this needs a set that is not installed: pip install --no-deps {PACKAGE}")
    return Path(spec.submodule_search_locations[0]) / "data"


def items(kind: str, share: float) -> list[dict[str, Any]]:
    """Questions with their answers, evenly from the file."""
    lines = [json.loads(line) for line in (data() / f"BFCL_v4_{kind}.json").read_text("utf-8").splitlines()]
    known: dict[str, Any] = {}
    if (answers := data() / "possible_answer" / f"BFCL_v4_{kind}.json").exists():
        known = {one["id"]: one["ground_truth"] for one in map(json.loads, answers.read_text("utf-8").splitlines())}
    count = max(1, round(COUNTS[kind] * share))
    chosen = lines[:: max(1, len(lines) // count)][:count]
    return [{**line, "kind": kind, "answer": known.get(line["id"], [])} for line in chosen]


def schema_of(given: Any) -> Any:
    """A schema of the set as JSON Schema."""
    if isinstance(given, list):
        return [schema_of(part) for part in given]
    if not isinstance(given, dict):
        return given
    out = {key: schema_of(value) for key, value in given.items() if key not in ("optional", "default", "format")}
    if isinstance(kind := out.get("type"), str):
        if kind == "any":
            del out["type"]
        else:
            out["type"] = TYPES.get(kind, kind)
    return out


def tools_of(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The item's functions as chat APIs have them."""
    return [
        {"type": "function", "function": {**one, "parameters": schema_of(one["parameters"])}}
        for one in item["function"]
    ]


def same(value: Any, wanted: Any) -> bool:
    """Whether a value is one of the answers' values: texts without case and marks, numbers by value."""
    if isinstance(wanted, dict):
        # Inside, every member again lists what it may be.
        return isinstance(value, dict) and arguments_match(value, wanted)
    if isinstance(wanted, list):
        return (
            isinstance(value, list)
            and len(value) == len(wanted)
            and all(same(a, b) for a, b in zip(value, wanted, strict=True))
        )
    if isinstance(wanted, bool) or isinstance(value, bool):
        return wanted is value
    if isinstance(wanted, str) and isinstance(value, str):
        return plain(value) == plain(wanted)
    return isinstance(value, int | float) and isinstance(wanted, int | float) and value == wanted


def plain(text: str) -> str:
    return text.translate(IGNORED).replace("'", '"').lower()


def arguments_match(values: Mapping[str, Any], wanted: Mapping[str, Sequence[Any]]) -> bool:
    """Whether all arguments are right; what an answer lists as "" may be left out."""
    if values.keys() - wanted.keys():
        return False
    return all(
        any(same(values[name], one) for one in options) if name in values else "" in options
        for name, options in wanted.items()
    )


def right(calls: Sequence[tuple[str, Mapping[str, Any]]], answer: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these are the calls of the answer, in any order."""
    if len(calls) != len(answer):
        return False
    left = list(answer)
    for name, values in calls:
        found = next((one for one in left if name in one and arguments_match(values, one[name])), None)
        if found is None:
            return False
        left.remove(found)
    return True


def run(lm: LM, mode: str, todo: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Answer items a dozen at a time, and score them."""
    for start in range(0, len(todo), AT_ONCE):
        running = []
        for item in todo[start : start + AT_ONCE]:
            try:
                request, use = lm.request(item["question"][0], tools=tools_of(item), mode=mode, max_tokens=256)
                running.append((item, lm.engine.add(request), request, use))
            except (ToolError, ConstraintError) as error:
                yield {"id": item["id"], "kind": item["kind"], "mode": mode, "right": False, "refused": str(error)}
        while not all(handle.done for _, handle, *_ in running):
            lm.engine.step()
        for item, handle, request, use in running:
            turn = lm.reader(request.prompt, use).turn(handle.result)
            calls = [(call.name, call.values) for call in turn.calls]
            told = {
                "tokens": turn.result.tokens,
                "passes": turn.result.passes,
                "calls": calls,
                "said": turn.content[:200],
            }
            yield {"id": item["id"], "kind": item["kind"], "mode": mode, "right": right(calls, item["answer"]), **told}


def summary(rows: Sequence[Mapping[str, Any]], model: str) -> dict[str, Any]:
    """Shares of right turns by mode and kind, and tokens per pass."""
    grouped: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["model"] == model:
            grouped[row["mode"], row["kind"]].append(row)
    found: dict[str, Any] = {}
    for (mode, kind), some in sorted(grouped.items()):
        passes = sum(row.get("passes", 0) for row in some)
        found.setdefault(mode, {})[kind] = {
            "items": len(some),
            "right": sum(row["right"] for row in some) / len(some),
            "called": sum(bool(row.get("calls")) for row in some) / len(some),
            "tokens_per_pass": sum(row.get("tokens", 0) for row in some) / passes if passes else 0.0,
        }
    return found


def read(journal: Path) -> list[dict[str, Any]]:
    """Finished items; a last line that was cut off is asked again."""
    found = []
    for line in journal.read_text("utf-8").splitlines() if journal.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--skills", default="auto", help="a skills file, none, or auto: the shelf's for this model")
    parser.add_argument("--modes", nargs="+", default=["verified", "diffusion", "ar"])
    parser.add_argument("--kinds", nargs="+", default=list(COUNTS), choices=list(COUNTS))
    parser.add_argument("--share", type=float, default=1.0, help="of the items")
    parser.add_argument("--again", action="store_true", help="forget what is known of this model")
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    journal = OUT / "skills.jsonl"
    rows = read(journal)
    name = options.model if options.skills == "auto" else f"{options.model}, {Path(options.skills).stem}"
    if options.again:
        rows = [row for row in rows if row["model"] != name]
        journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lm = trifolium.load(options.model, skills=None if options.skills == "none" else options.skills)
    weights = (lm.fingerprint or "")[:12]
    rows = [row for row in rows if row["model"] != name or row["weights"] == weights]
    for mode in options.modes:
        for kind in options.kinds:
            known = {row["id"] for row in rows if row["model"] == name and row["mode"] == mode}
            todo = [item for item in items(kind, options.share) if item["id"] not in known]
            for done, row in enumerate(run(lm, mode, todo), 1):
                row |= {"model": name, "weights": weights}
                rows.append(row)
                with journal.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"\r{mode} {kind}: {done} of {len(todo)}", end="", file=sys.stderr, flush=True)
            print(file=sys.stderr)
    path = OUT / "skills.json"
    known_models = json.loads(path.read_text()) if path.exists() else {}
    known_models[name] = summary(rows, name)
    path.write_text(json.dumps(known_models, indent=2) + "\n")
    print(json.dumps(known_models, indent=2))


if __name__ == "__main__":
    main()
