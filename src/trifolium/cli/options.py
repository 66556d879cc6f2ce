"""Options that several commands share, and what becomes of them."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..checkpoint.shelf import DEFAULT_MODEL
from ..dtypes import DTYPES, check
from ..errors import ConfigError, ConstraintError, NotFoundError, ToolError

if TYPE_CHECKING:
    from ..api import LM
    from ..constrain import Constraint

Model = Annotated[str, typer.Option(help="A shelf name, a folder, a GGUF file or a hub id.")]
Adapter = Annotated[
    str, typer.Option(help="An adapter file, `none`, or `auto`: the one in the package for this model.", metavar="PATH")
]
Skills = Annotated[
    str,
    typer.Option(
        help="A file of deltas to merge into the weights, `none`, or `auto`: what the shelf gives this model.",
        metavar="PATH",
    ),
]
DType = Annotated[
    str, typer.Option("--dtype", help=f"How products are computed: auto (by CPU and model), {', '.join(DTYPES)}.")
]
Mode = Annotated[str, typer.Option(help="verified (equal to ar, in fewer passes), diffusion, or ar.")]
Drafts = Annotated[
    str,
    typer.Option(
        help="Where verified's drafts come from: preview, ngram, both, forced (a constraint's literals only) or none."
    ),
]
BlockSize = Annotated[int | None, typer.Option(help="Positions previewed or filled together. [default: the adapter's]")]
RowBudget = Annotated[
    int,
    typer.Option(
        "--rows", min=1, help="Most rows of a pass; verified takes of them what is worth its time on this machine."
    ),
]
FreeRows = Annotated[
    bool,
    typer.Option(
        "--free-rows", help="Take all rows that may save a pass, worth their time or not: more drafts to look at."
    ),
]
Policy = Annotated[str, typer.Option(help="What diffusion accepts in a pass: threshold, entropy or top_n.")]
Threshold = Annotated[float, typer.Option(help="Least confidence that diffusion's threshold policy accepts.")]
Remask = Annotated[bool, typer.Option(help="Let diffusion mask again what the fuller block no longer supports.")]
MaxTokens = Annotated[int, typer.Option(help="Longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Sample among the k most probable tokens; 0: among all.")]
TopP = Annotated[float, typer.Option(help="Sample among the most probable tokens that hold this mass.")]
MinP = Annotated[float, typer.Option(help="Drop tokens less probable than this share of the most probable one.")]
RepetitionPenalty = Annotated[float, typer.Option(help="Above 1: avoid tokens of the prompt and answer.")]
PresencePenalty = Annotated[float, typer.Option(help="Above 0: avoid tokens that the answer has, -2 to 2.")]
FrequencyPenalty = Annotated[
    float, typer.Option(help="Above 0: avoid tokens by how often the answer has them, -2 to 2.")
]
Seed = Annotated[int, typer.Option(help="Equal seeds give equal answers, in verified and ar alike.")]
System = Annotated[str | None, typer.Option(help="The system message. [default: the template's own]")]
Stop = Annotated[list[str] | None, typer.Option(help="End before this text; may be given several times.")]
Schema = Annotated[
    str | None,
    typer.Option(
        help="Answer with JSON that fits this JSON Schema: a file, or the schema itself.", metavar="FILE|JSON"
    ),
]
Regex = Annotated[str | None, typer.Option(help="Answer with text that matches this pattern as a whole.")]
Grammar = Annotated[
    str | None,
    typer.Option(help="Answer with a sentence of the grammar in this file (Lark or GBNF).", metavar="FILE"),
]
Tools = Annotated[
    str | None,
    typer.Option(
        help="Let the model call the tools in this file (a JSON list, as OpenAI's API has it); with --json, calls are "
        "under `tool_calls`.",
        metavar="FILE",
    ),
]
ToolChoice = Annotated[
    str | None, typer.Option(help="auto, none, required, or the name of the tool to call.", metavar="WHICH")
]
Repeats = Annotated[
    int | None,
    typer.Option(min=2, help="End an answer that ends in the same line (or other unit) this many times."),
]
ThinkingBudget = Annotated[int | None, typer.Option(min=0, help="Close a think block after so many tokens.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]

DEFAULT = DEFAULT_MODEL
ROWS = 96
"""engine.MAX_ROWS, which costs an import of torch to look up; a test holds the two together."""


def constraint_of(schema: str | None, regex: str | None, grammar: str | None) -> Constraint | None:
    """The constraint that the options name. Raises ConfigError, NotFoundError or ConstraintError."""
    from ..api import take_constraint

    if schema is not None and not schema.lstrip().startswith("{"):
        schema = _read(schema)
    if grammar is not None:
        grammar = _read(grammar)
    return take_constraint({"schema": schema, "regex": regex, "grammar": grammar})[0]


def tools_of(path: str | None, choice: str | None) -> dict[str, Any]:
    """The options of `LM.submit` that name tools. Raises ConfigError, NotFoundError or ToolError."""
    from ..tools import read_use

    if path is None:
        if choice is not None:
            raise ConfigError("--tool-choice needs --tools")
        return {}
    try:
        tools = json.loads(_read(path))
    except ValueError as error:
        raise ToolError(f"{path} is not JSON: {error}") from None
    if not isinstance(tools, list):
        raise ToolError(f"{path}: tools are a JSON list")
    words = (None, "auto", "none", "required")
    wanted = choice if choice in words else {"type": "function", "name": choice}
    read_use(tools, wanted)  # faults show before a model is loaded
    return {"tools": tools, "tool_choice": wanted}


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConstraintError(f"{path} can't be read: {error}") from None


def load_model(
    model: str,
    adapter: str,
    dtype: str,
    rows: int = ROWS,
    *,
    skills: str = "auto",
    say: Callable[[str], None] | None = None,
) -> LM:
    """Load for a command; `say` is told what happens, since the first load may take a while."""
    check(dtype)
    from ..api import load

    _show_log()
    if say is not None:
        say(f"loading {model} ...")
    chosen: Any = dtype
    files = {"adapter": named(adapter), "skills": named(skills)}
    lm = load(model, **files, dtype=chosen, max_rows=rows, progress=sys.stderr.isatty())
    for text in lm.notes:
        note(text)
    return lm


def named(file: str) -> str | None:
    """What `load` takes for an option that may be `none`."""
    return None if file == "none" else file


def _show_log() -> None:
    """What takes a while and happens once is told on stderr, to people."""
    log = logging.getLogger("trifolium")
    if sys.stderr.isatty() and not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("note: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)


def note(text: str) -> None:
    """Something that the user should know, kept out of the answer."""
    print(f"note: {text}", file=sys.stderr)
