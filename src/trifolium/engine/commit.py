"""Verified decoding: the pass that verifies the last drafts also previews the next ones.

A pass holds the last emitted token, a tree of drafts after it, and canvases of mask rows whose contexts end with those
of the rows where the pass most likely ends. The commit rows' logits are the AR model's own, so what is emitted never
depends on where drafts come from: only the number of passes does. Without drafts this is AR decoding.
"""

from __future__ import annotations

from ..model import MASK
from .costs import Budget
from .drafts import Draft, DraftBook, PreviewDrafts
from .events import Cell
from .fitting import OptionDrafts
from .plan import Outcome, Plan
from .proposals import Ask
from .request import Live
from .tree import Layout, choose

_BARE = Layout(Draft(), (1.0,), ())
"""The last emitted token and nothing else."""


OPTION_ROWS = 12
"""Rows that trying all options must not take the time of more than one token for."""


class VerifiedDecoder:
    """Decodes one request exactly as AR would. `block`: mask rows of a canvas, 0 for no previews."""

    def __init__(
        self,
        live: Live,
        book: DraftBook,
        previews: PreviewDrafts | None,
        block: int,
        options: OptionDrafts | None = None,
    ) -> None:
        self._live = live
        self._book = book
        self._previews = previews
        self._block = block if previews is not None else 0
        self._options = options
        self._layout = _BARE

    def plan(self, budget: Budget) -> Plan:
        live = self._live
        # Every pass brings one token more than it has accepted drafts.
        depth = live.remaining - 1
        if self._options is not None:
            self._options.affordable = budget.price(OPTION_ROWS) <= 1.0
        draft, estimates = self._book.best(depth)
        # Near the end of the context a canvas must still fit.
        block = min(self._block, live.max_positions - live.position - 2)
        worths = self._worths(block, budget)
        useful = min(depth - 2, live.max_positions - live.position - 1 - block)
        # One row by itself, AR's pass, needs no choice.
        bare = not draft.tokens and len(worths) == 1
        self._layout = layout = _BARE if bare else choose(draft, estimates, budget, worths, useful)
        blocks = tuple((row + 1, (MASK,) * layout.block) for row in layout.previewed)
        tokens = (live.tokens[-1], *layout.draft.tokens)
        return Plan(tokens, len(tokens), blocks, layout.parents)

    def _worths(self, block: int, budget: Budget) -> list[float]:
        """As `PreviewDrafts.worths`, or none where no canvas could pay: with many requests in a pass that is seldom
        else, and looking closer takes time, too."""
        if self._previews is None or self._previews.most(block) <= budget.price(2) + budget.proposal:
            return [0.0]
        return self._previews.worths(block, budget)

    def apply(self, outcome: Outcome) -> Ask | None:
        live, layout = self._live, self._layout
        emitted: list[int] = []
        path = [0]
        while True:
            row = path[-1]
            forced = live.guide is not None and live.guide.after().single is not None
            token = live.choose(outcome.logits[row], outcome.largest[row])
            right = layout.child(row, token)
            if live.emit(token, live.logprob_of(token, outcome.logits[row])):
                emitted.append(token)
                if right is not None:
                    live.accepted_by["forced" if forced else layout.draft.source] += 1
            if live.done or right is None:
                break
            path.append(right)
        live.state.accept_path(path)
        if self._previews is not None:
            self._previews.learn(emitted)
        self._book.learn(emitted)
        if live.drafts != "none":
            live.finish_forced()
        row = path[-1]
        if live.done or row not in layout.previewed:
            return None
        block = outcome.blocks[layout.previewed.index(row)]
        return Ask(live.sampler, block, outcome.hidden[row], live.tokens[-1], live.position + 1, live.guide)

    def receive(self, draft: Draft) -> None:
        assert self._previews is not None
        self._previews.set(draft)
        cells, at = list[Cell](), -1
        while children := draft.children(at):
            at = max(children, key=lambda i: draft.confidences[i])
            cells.append(Cell(draft.tokens[at], "proposed", draft.confidences[at]))
        masked = [Cell(None, "masked")] * (self._layout.block - len(cells))
        self._live.show_canvas(cells + masked)
