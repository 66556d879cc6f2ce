"""`trifolium run`: one answer."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from ..errors import PromptError
from . import options as o

app = typer.Typer(add_completion=False)

_EPILOG = (
    'Examples: trifolium run "Name the capital of France."  |  trifolium run --mode diffusion "Tell a story"  |  '
    'echo Hello | trifolium run - --json  |  trifolium run --schema person.json "Invent a person."'
)


@app.command(epilog=_EPILOG)
def run(
    prompt: Annotated[str | None, typer.Argument(help="The message; `-`, or nothing in a pipe, reads it.")] = None,
    model: o.Model = o.DEFAULT,
    adapter: o.Adapter = "auto",
    skills: o.Skills = "auto",
    mode: o.Mode = "verified",
    drafts: o.Drafts = "both",
    block_size: o.BlockSize = None,
    rows: o.RowBudget = o.ROWS,
    free_rows: o.FreeRows = False,
    policy: o.Policy = "threshold",
    threshold: o.Threshold = 0.9,
    remask: o.Remask = False,
    max_tokens: o.MaxTokens = 256,
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    repetition_penalty: o.RepetitionPenalty = 1.0,
    presence_penalty: o.PresencePenalty = 0.0,
    frequency_penalty: o.FrequencyPenalty = 0.0,
    seed: o.Seed = 0,
    system: o.System = None,
    stop: o.Stop = None,
    schema: o.Schema = None,
    regex: o.Regex = None,
    grammar: o.Grammar = None,
    tools: o.Tools = None,
    tool_choice: o.ToolChoice = None,
    repeats: o.Repeats = None,
    thinking_budget: o.ThinkingBudget = None,
    dtype: o.DType = "auto",
    as_json: o.AsJson = False,
) -> None:
    """Answer one prompt. On a terminal the canvas is seen resolving; in a pipe only the text is printed.

    Unfinished positions are shown behind the text: masked, proposed (may still change) or accepted.
    """
    from ..api import split_options

    message = read_prompt(prompt)
    settings: dict[str, Any] = {
        "mode": mode,
        "drafts": drafts,
        "block_size": block_size,
        "policy": policy,
        "threshold": threshold,
        "free_rows": free_rows,
        "remask": remask,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "seed": seed,
        "stop": tuple(stop or ()),
        "thinking_budget": thinking_budget,
        **({} if repeats is None else {"repeats": repeats}),
    }
    split_options(settings)  # faults show before a model is loaded
    settings |= {"system": system, "constraint": o.constraint_of(schema, regex, grammar)}
    settings |= o.tools_of(tools, tool_choice)
    lm = o.load_model(model, adapter, dtype, rows, skills=skills)
    if as_json:
        turn = lm.chat(message, **settings)
        print(json.dumps(turn.as_dict() if tools else turn.result.as_dict(), ensure_ascii=False))
        for text in turn.result.notes:
            o.note(text)
        return
    from .show import AnswerView, print_plain, summary

    events = lm.stream(message, **settings)
    if not sys.stdout.isatty():
        finished = print_plain(events)
    else:
        from rich.console import Console

        console = Console(highlight=False)
        finished = AnswerView(console).show(events)
        if finished is not None:
            console.print(summary(finished), style="dim", markup=False, soft_wrap=True)
    for text in finished.notes if finished else ():
        o.note(text)


def read_prompt(prompt: str | None) -> str:
    """The prompt, from standard input where it is `-` or nothing. Raises PromptError if there is none."""
    if prompt == "-" or (prompt is None and not sys.stdin.isatty()):
        prompt = sys.stdin.read().removesuffix("\n")
    if prompt is None or not prompt.strip():
        raise PromptError('the prompt is empty: give it in quotes, as in trifolium run "What is a prime number?"')
    return prompt
