"""Questions as a model reads them: after the state, each with labelled options, and then the place where labels go.

    <chat template up to the message> state
    Question: ...            } a sheet: what follows the state,
    A. option: description   } up to where the first
    B. ...                   } label is expected
    Answer:  A

The model is asked for labels and scored by them, never by the options' texts: labels are of one length, so that an
option is neither favoured nor punished for how much it says. State and sheet are cut into tokens apart from each other,
so that all sheets share the state's tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from ..errors import PromptError, QuestionError, TemplateError
from ..text import ChatTemplate, Tokenizer
from .questions import Question

Label = tuple[int, ...]

_PLACE = "\x02"
"""Stands where the message goes while the chat template is rendered; no text has it."""


@dataclass(frozen=True)
class Sheet:
    """One or more questions, in the order in which they are answered.

    `tokens` follow the state. `places`: which question is answered at each place. `labels`: for each place the tokens
    of every option, by the option's index in its question.
    """

    tokens: tuple[int, ...]
    places: tuple[int, ...]
    labels: tuple[tuple[Label, ...], ...]


class Writer:
    """Writes states and sheets for one model. Raises TemplateError for a chat template that has no place for them."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        text, own = template.render_tracked([{"role": "user", "content": _PLACE}])
        if text.count(_PLACE) != 1:
            raise TemplateError("the chat template doesn't show a user's message once: no question can be put to it")
        head, _, tail = text.partition(_PLACE)
        cut = len(head)
        self._head = tokenizer.encode_spans(head, [(a, min(b, cut)) for a, b in own if a < cut])
        after = cut + len(_PLACE)
        self._tail = tokenizer.encode_spans(tail, [(max(a, after) - after, b - after) for a, b in own if b > after])

    def state(self, state: str) -> list[int]:
        """Token ids of everything up to the first question. Raises PromptError for an empty state."""
        if not state.strip():
            raise PromptError("the state is empty: say what the questions are about")
        return [*self._head, *self._plain(state)]

    def sheet(self, questions: Sequence[Question], turn: int = 0) -> Sheet:
        """Questions on one sheet. `turn`: which of the orders (`turned`) they and their options stand in."""
        places = turned(len(questions), turn)
        labels = list[tuple[Label, ...]]()
        for place in places:
            options = turned(len(questions[place].options), turn)
            by_option = dict(zip(options, map(self._label, label_names(len(options))), strict=True))
            labels.append(tuple(by_option[i] for i in range(len(options))))
        text, lead = written(questions, turn)
        return Sheet((*self._plain(text), *self._tail, *self._plain(lead)), places, tuple(labels))

    def _label(self, name: str) -> Label:
        return tuple(self._plain(" " + name))

    def _plain(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False)


def written(questions: Sequence[Question], turn: int = 0) -> tuple[str, str]:
    """What stands after a state, and what its answer begins with; each label follows after a blank."""
    parts = []
    for number, place in enumerate(turned(len(questions), turn), 1):
        question = questions[place]
        options = turned(len(question.options), turn)
        title = "Question" if len(questions) == 1 else f"Question {number}"
        lines = [f"\n\n{title}: {question.instructions}".rstrip()]
        for name, index in zip(label_names(len(options)), options, strict=True):
            option = question.options[index]
            lines.append(f"{name}. {option.label}" + (f": {option.description}" if option.description else ""))
        parts.append("\n".join(lines))
    if len(questions) == 1:
        return "".join([*parts, "\nAnswer with the letter of the best option."]), "Answer:"
    return "".join([*parts, "\n\nAnswer every question with the letter of its best option, in order."]), "Answers:"


def label_names(count: int) -> list[str]:
    """Letters for up to 26 options, pairs of letters for up to 676: of equal length, so none begins another."""
    letters = ascii_uppercase
    return list(letters[:count]) if count <= len(letters) else [a + b for a in letters for b in letters][:count]


def turned(count: int, turn: int) -> tuple[int, ...]:
    """The `turn`-th order of `count` things: as given, reversed, rotated by one, that reversed, and so on."""
    start = turn // 2 % count
    order = (*range(start, count), *range(start))
    return order[::-1] if turn % 2 else order


def orders(count: int) -> int:
    """How many different orders `turned` has for `count` things."""
    return 2 * count if count > 2 else count


def text_of(content: Any) -> str:
    """A state, an instruction or a description as text: objects and arrays as JSON, nothing as "".

    Raises QuestionError for anything that JSON doesn't have.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    try:
        return json.dumps(content, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        raise QuestionError(f"{type(content).__name__} is neither text nor JSON") from None
