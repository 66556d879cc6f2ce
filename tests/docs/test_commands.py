"""Commands in the documents are real: every option exists, and the Python of the README runs."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path

import click
import pytest
import typer

from trifolium.cli import COMMANDS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "deploy/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def commands() -> list[tuple[str, list[str]]]:
    """(document, words) of every `trifolium ...` line, without its comment."""
    out = []
    for document in DOCUMENTS:
        for line in document.read_text().splitlines():
            found = re.match(r"^(?:    |`+)(?:\S*/)?trifolium (.+?)(?:`|$)", line)
            if found:
                out.append((document.name, shlex.split(found[1], comments=True)))
    return out


def test_there_are_commands_to_check() -> None:
    assert len([words for name, words in commands() if name == "README.md"]) >= 10


@pytest.mark.parametrize(("document", "words"), commands(), ids=lambda x: x if isinstance(x, str) else " ".join(x)[:40])
def test_every_command_parses(document: str, words: list[str]) -> None:
    module, _ = COMMANDS[words[0]]
    command = typer.main.get_command(import_module(module, "trifolium.cli").app)
    while isinstance(command, click.Group):
        words = words[1:]
        command = command.commands[words[0]]
    command.make_context("trifolium", words[1:])  # raises for an unknown option or a missing argument


def test_make_targets_named_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    for document in DOCUMENTS:
        assert set(re.findall(r"make ([a-z]+)", document.read_text())) <= targets | {"it"}, document


def test_recipes_parse() -> None:
    from trifolium.train.recipe import Recipe, Skills

    recipes = sorted((ROOT / "recipes").glob("*.toml"))
    assert recipes
    for path in recipes:
        kind = tomllib.loads(path.read_text()).get("kind")
        recipe = Skills.load(path) if kind == "skills" else Recipe.load(path)
        assert recipe.steps > 1


@pytest.mark.real
@pytest.mark.parametrize(
    ("document", "output"), [("README.md", "Paris"), ("docs/structured.md", "[["), ("docs/tools.md", "get_weather")]
)
def test_the_python_of_documents_runs(
    default_gguf: Path, capsys: pytest.CaptureFixture[str], document: str, output: str
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, document, "exec", dont_inherit=True), {})
    assert output in capsys.readouterr().out
