"""What a model thinks, apart from what it says: <think> ... </think> at the beginning of an answer."""

from __future__ import annotations

__all__ = ["ReasoningSplitter"]

OPEN, CLOSE = "<think>", "</think>"


class ReasoningSplitter:
    """Splits an answer, as it arrives in pieces, into reasoning and content.

    `thinking`: the prompt ended with an open think block, so that the answer begins inside it. Line breaks around the
    block belong to neither side. A tag that is cut between pieces is held back until it is whole, or can't become one.
    `knows`: the model has such blocks; the answers of others are content, whatever is in them.
    """

    def __init__(self, thinking: bool = False, *, knows: bool = True) -> None:
        self._thinking = thinking
        self._tag: str | None = CLOSE if thinking else OPEN if knows else None  # what would switch sides, if anything
        self._held = ""
        self._stripping = knows  # whether line breaks at the beginning of this side are still to be dropped

    def split(self, text: str) -> tuple[str, str]:
        """(reasoning, content) of a whole answer."""
        parts = (self.push(text), self.finish())
        return "".join(reasoning for reasoning, _ in parts), "".join(content for _, content in parts)

    def push(self, text: str) -> tuple[str, str]:
        """(reasoning, content) that is now known."""
        self._held += text
        said = {True: "", False: ""}
        more = True
        while more:
            thinking = self._thinking
            text, more = self._next()
            said[thinking] += text
        return said[True], said[False]

    def finish(self) -> tuple[str, str]:
        """What was held back for a tag that never came."""
        side, self._held = self._held, ""
        if self._stripping:
            side = side.lstrip("\n")
        return (side, "") if self._thinking else ("", side)

    def _next(self) -> tuple[str, bool]:
        """Text of the side that is being said, and whether what is held goes on after it."""
        if self._tag == OPEN:
            return self._before_open()
        if self._stripping:
            self._held = self._held.lstrip("\n")
            if not self._held:
                return "", False
            self._stripping = False
        if self._tag is None:
            side, self._held = self._held, ""
            return side, False
        before, tag, after = self._held.partition(self._tag)
        if tag:
            self._thinking, self._tag, self._stripping, self._held = False, None, True, after
            return before.rstrip("\n"), True
        # Line breaks may stand before the tag, which may be cut.
        keep = len(before) - len(_open_end(before, self._tag))
        keep = len(before[:keep].rstrip("\n"))
        self._held = before[keep:]
        return before[:keep], False

    def _before_open(self) -> tuple[str, bool]:
        """Only a block that the answer begins with is reasoning."""
        start = self._held.lstrip()
        if start.startswith(OPEN):
            self._thinking, self._tag, self._stripping, self._held = True, CLOSE, True, start[len(OPEN) :]
            return "", True
        if OPEN.startswith(start):  # also while there is only white space
            return "", False
        self._tag, self._stripping = None, False
        return "", True


def _open_end(text: str, tag: str) -> str:
    """The longest end of `text` that begins `tag`."""
    return next((tag[:n] for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), "")
