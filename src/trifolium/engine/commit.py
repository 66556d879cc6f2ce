"""Verified decoding: the pass that verifies the last drafts also previews the next ones.

A pass holds the last emitted token, its k drafts, and for each likely number n of accepted drafts a branch of mask
rows whose context ends with commit row n. The commit rows' logits are the AR model's own, so what is emitted never
depends on where drafts come from: only the number of passes does. Without drafts this is AR decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..model import MASK
from .drafts import Draft, DraftBook, PreviewDrafts, reach
from .events import Cell
from .plan import Outcome, Plan
from .proposals import MIN_REACH, Ask
from .request import Live

MIN_BRANCH = 0.02
"""Branches less likely than this are not previewed; where one comes true, the next pass is a plain one."""

MIN_BLOCK = 2
"""A canvas that the row budget cuts below this is not worth its rows."""


def outcomes(estimates: Sequence[float]) -> list[float]:
    """The chance that exactly n drafts are accepted, for n = 0 .. k."""
    reached = [1.0, *reach(estimates)]
    return [a - b for a, b in zip(reached, [*reached[1:], 0.0], strict=True)]


class VerifiedDecoder:
    """Decodes one request exactly as AR would. `block`: mask rows a branch, 0 for none."""

    def __init__(self, live: Live, book: DraftBook, previews: PreviewDrafts | None, block: int) -> None:
        self._live = live
        self._book = book
        self._previews = previews
        self._block = block if previews is not None else 0
        self._draft = Draft()
        self._branches: dict[int, int] = {}

    def plan(self, rows: int) -> Plan:
        live = self._live
        # Every pass brings one token more than it has accepted drafts.
        limit = min(live.remaining, rows) - 1
        draft, estimates = self._book.best(limit)
        # At most half of the rows for one branch, and room for the likeliest branch beside the drafts.
        block = min(self._block, (rows - 1) // 2)
        count = min(sum(chance >= MIN_REACH for chance in reach(estimates)), rows - 1 - block)
        self._draft = draft.cut(count)
        chosen = self._choose_branches(estimates[:count], block, rows - 1 - count)
        self._branches = {n: i for i, (n, _) in enumerate(chosen)}
        blocks = tuple((n + 1, (MASK,) * size) for n, size in chosen)
        return Plan((live.tokens[-1], *self._draft.tokens), 1 + count, blocks)

    def _choose_branches(self, estimates: Sequence[float], block: int, room: int) -> list[tuple[int, int]]:
        """(n, size) of the branches to preview, likeliest first, as far as `room` rows go; in order of n."""
        live = self._live
        chances = outcomes(estimates)
        chosen: list[tuple[int, int]] = []
        for n in sorted(range(len(chances)), key=lambda n: -chances[n]):
            # After branch n comes true, drafts only help if more than one token is still wanted.
            useful = live.remaining - (n + 1) > 1
            size = min(block, room, live.max_positions - (live.position + n + 1))
            if useful and size >= min(MIN_BLOCK, block) > 0 and (not chosen or chances[n] >= MIN_BRANCH):
                chosen.append((n, size))
                room -= size
        return sorted(chosen)

    def apply(self, outcome: Outcome) -> Ask | None:
        live, draft = self._live, self._draft
        emitted: list[int] = []
        accepted = 0
        for i, largest in enumerate(outcome.largest):
            position = live.position + 1
            if live.sampler.plain_greedy:
                token = largest
            else:
                token = live.sampler.choose(outcome.logits[i].double().numpy(), position)
            right = i < len(draft.tokens) and draft.tokens[i] == token
            if live.emit(token):
                emitted.append(token)
                if right:
                    live.accepted_by[draft.source] += 1
            if live.done or not right:
                break
            accepted += 1
        live.state.accept(1 + accepted)
        self._book.learn(emitted)
        index = self._branches.get(accepted)
        if live.done or index is None:
            return None
        return Ask(live.sampler, outcome.blocks[index], outcome.hidden[accepted], live.tokens[-1], live.position + 1)

    def receive(self, tokens: Sequence[int], confidences: Sequence[float]) -> None:
        assert self._previews is not None
        self._previews.set(tokens, confidences)
        cells = [Cell(token, "proposed", chance) for token, chance in zip(tokens, confidences, strict=True)]
        masked = [Cell(None, "masked")] * (self._block - len(cells))
        self._live.show_canvas(cells + masked)
