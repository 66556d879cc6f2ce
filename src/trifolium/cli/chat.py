"""`trifolium chat`: a conversation on the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import typer
from rich.console import Console

from . import options as o

app = typer.Typer(add_completion=False)


@app.command(
    epilog="Examples: trifolium chat  |  trifolium chat --system 'You answer in one sentence.' --mode diffusion"
)
def chat(
    model: o.Model = o.DEFAULT,
    adapter: o.Adapter = "auto",
    skills: o.Skills = "auto",
    mode: o.Mode = "verified",
    drafts: o.Drafts = "both",
    block_size: o.BlockSize = None,
    rows: o.RowBudget = o.ROWS,
    free_rows: o.FreeRows = False,
    threshold: o.Threshold = 0.9,
    max_tokens: o.MaxTokens = 512,
    temperature: o.Temperature = 0.0,
    top_p: o.TopP = 1.0,
    seed: o.Seed = 0,
    system: o.System = None,
    dtype: o.DType = "auto",
) -> None:
    """Talk with a model. /help lists what else can be typed; Ctrl-C stops an answer, Ctrl-D ends the chat."""
    from ..api import split_options
    from .conversation import Conversation

    settings = {
        "mode": mode,
        "drafts": drafts,
        "block_size": block_size,
        "threshold": threshold,
        "free_rows": free_rows,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
    }
    split_options(settings)
    console = Console(highlight=False)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    lm = o.load_model(model, adapter, dtype, rows, skills=skills, say=console.print if terminal else None)
    conversation = Conversation(lm, settings, console, system=system, terminal=terminal)
    history = history_file(os.environ) if terminal else None
    _read_history(history)
    if terminal:
        console.print(f"{lm.name}, {lm.dtype}, {mode}. /help for help.", style="dim", markup=False)
    try:
        while not conversation.over:
            try:
                line = input("> " if terminal else "")
            except KeyboardInterrupt:
                console.print()
                continue
            except EOFError:
                break
            conversation.enter(line)
    finally:
        _write_history(history)


def history_file(environment: Mapping[str, str]) -> Path:
    """Where typed lines are kept: trifolium/chat_history in $XDG_STATE_HOME (if absolute) or ~/.local/state."""
    xdg = Path(environment.get("XDG_STATE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".local" / "state") / "trifolium" / "chat_history"


def _read_history(path: Path | None) -> None:
    if path is not None:
        with suppress(ImportError, OSError):  # no readline on this system, or no history yet
            import readline

            readline.set_history_length(1000)
            readline.read_history_file(path)


def _write_history(path: Path | None) -> None:
    if path is not None:
        with suppress(ImportError, OSError):  # a read-only home must not spoil the goodbye
            import readline

            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
