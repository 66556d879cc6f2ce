"""The `trifolium` command. To add a command: a module here with `app = typer.Typer(...)`, and one line in COMMANDS.

Modules are imported when their command is used, so `trifolium --help` stays fast however heavy a command is.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from .. import __version__
from ..errors import TrifoliumError

# name: (module, the line in `trifolium --help`)
COMMANDS = {
    "run": (".run", "Answer one prompt, and see the canvas resolve."),
    "chat": (".chat", "Talk with a model."),
    "serve": (".serve", "A local server for OpenAI's and Anthropic's clients, with a page."),
    "decide": (".decide", "Answer typed questions about a text: each by itself, or jointly without contradiction."),
    "calibrate": (".calibrate", "Fit the confidence of typed answers to answers that are known."),
    "bench": (".bench", "The decoding modes against each other, on the same prompts."),
    "models": (".models", "List, fetch, show and remove the models on the shelf."),
    "inspect": (".inspect", "What a model is made of: layers, shapes, parameters, memory, tokenizer."),
    "convert": (".convert", "Make a fresh adapter for an AR checkpoint, and the recipe that trains it."),
    "train": (".train", "Train an adapter by its recipe; resumes where it stopped."),
    "generate-data": (".generate_data", "Let a model write the conversations that its adapter is trained on."),
    "generate-skills": (".generate_skills", "Invent conversations that teach tools, extraction and decisions."),
}

GC_THRESHOLDS = (100_000, 50, 50)
"""Importing torch makes a million objects that all stay: looking for garbage among them takes a tenth of the time."""

_EPILOG = (
    "Every command has its own --help with examples. Errors end with exit code 2 and one line that says what to do."
)


class LazyGroup(TyperGroup):
    """A command group whose members are imported when they are run, not when they are listed."""

    _listing = False

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        """The command, or only its name and summary while help is written; None when there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        module, summary = COMMANDS[cmd_name]
        if self._listing:
            return TyperCommand(cmd_name, help=summary)
        command = typer.main.get_command(import_module(module, __name__).app)
        command.name = cmd_name
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Help from the table alone."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Always ends in SystemExit: 0, 2 for any error that has a clear message, 130 for Ctrl-C."""
    app = typer.Typer(cls=LazyGroup, add_completion=False, no_args_is_help=True, epilog=_EPILOG)
    app.callback()(_root)
    command = typer.main.get_command(app)
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        command.main(args=None if arguments is None else list(arguments), prog_name="trifolium")
    except TrifoliumError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        gc.set_threshold(*thresholds)


def _root(
    version: bool = typer.Option(False, "--version", is_eager=True, callback=lambda wanted: _version(wanted)),
) -> None:
    """Block-diffusion language models for agents: text in parallel blocks, token-identical to AR decoding."""


def _version(wanted: bool) -> None:
    if wanted:
        print(f"trifolium {__version__}")
        raise typer.Exit
