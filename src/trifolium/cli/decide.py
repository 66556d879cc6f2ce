"""`trifolium decide`: typed questions about one state."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import NotFoundError, QuestionError, UsageError
from . import options as o

if TYPE_CHECKING:
    from ..decide import Answer, Decisions

app = typer.Typer(add_completion=False)

_EPILOG = (
    "Examples: trifolium decide mail.json  |  trifolium decide mail.json --json  |  "
    """echo '{"state": "Help!", "questions": {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}}' """
    "| trifolium decide -"
)


@app.command(epilog=_EPILOG)
def decide(
    file: Annotated[str, typer.Argument(metavar="FILE.json", help="State and questions; `-` reads them.")],
    model: o.Model = o.DEFAULT,
    skills: o.Skills = "auto",
    dtype: o.DType = "auto",
    as_json: o.AsJson = False,
) -> None:
    """Answer typed questions about a state. FILE holds what POST /v1/systemone takes (docs/decisions.md).

    {"state": ..., "questions": {NAME: {"type": "noul" | "choice" | "score", "instructions": ..., "criteria": ...}}},
    and groups that are answered together under {"trifolium": {"joint": [...]}}.
    """
    from ..decide import systemone

    try:
        inquiry = systemone.read(systemone.parse(read_file(file)))
    except QuestionError as error:
        place = ".".join(map(str, error.where))
        raise UsageError(f"{file}: {place + ': ' if place else ''}{error}") from None
    lm = o.load_model(model, "none", dtype, skills=skills)
    decisions = lm.answer(inquiry)
    if as_json:
        print(json.dumps(decisions.as_dict(), ensure_ascii=False))
    else:
        _print(decisions)


def read_file(name: str) -> str:
    """A file's text, or standard input's for `-`. Raises NotFoundError or UsageError."""
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).expanduser().read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {name}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} can't be read: {error}") from None


def _print(decisions: Decisions) -> None:
    from .fields import print_fields

    print_fields({answer.question.name: _line(answer) for answer in decisions.answers})
    for group in decisions.joint:
        print(f"\njointly, {', '.join(question.name for question in group.questions)}:")
        for one in group.top:
            print(f"  {one.probability:6.1%}  {_values(one.answers)}")
        if group.unseen_mass > 0.0:
            print(f"  {group.unseen_mass:6.1%}  unseen, at most")
        for answer in group.conditionals():
            print(f"  if what is given holds, {answer.question.name}: {_line(answer)}")


def _line(answer: Answer) -> str:
    """An answer for people."""
    question = answer.question
    if question.type == "noul":
        return f"{'yes' if answer.yes >= 0.5 else 'no'} (yes {answer.yes:.1%})"
    if question.type == "score":
        return f"{answer.score:.2f} of {len(question.options) - 1} (confidence {answer.confidence:.2f})"
    return f"{question.options[answer.best].label} ({answer.probability:.1%}, confidence {answer.confidence:.2f})"


def _values(answers: Any) -> str:
    return ", ".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in answers.items())
