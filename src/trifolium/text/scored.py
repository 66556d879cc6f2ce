"""SentencePiece BPE as GGUF files carry it: pieces with scores, and bytes for what no piece covers."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

__all__ = ["ScoredPieces"]

SPACE = "\u2581"  # SentencePiece writes a space as a low block, so that pieces can hold spaces and stay printable


class ScoredPieces:
    """Joins neighbours into the piece with the best score until nothing joins; ties go to the leftmost.

    This is SentencePiece's BPE encoder (Kudo and Richardson 2018, section 3.1): n characters take O(n log n).
    `pieces`: text to (id, score). `byte_ids`: the token of each byte, for characters that have no piece;
    a byte without a token becomes `unk_id`. `space_prefix`: a space is put before every text.
    """

    def __init__(
        self,
        pieces: Mapping[str, tuple[int, float]],
        byte_ids: Mapping[int, int],
        unk_id: int,
        *,
        space_prefix: bool,
    ) -> None:
        self._pieces = pieces
        self._byte_ids = byte_ids
        self._unk_id = unk_id
        self._space_prefix = space_prefix

    def __call__(self, text: str, first: bool) -> list[int]:
        # A text that follows an added token gets the space too: llama.cpp does so, and models were trained on it.
        return self._ids(self._merge((" " + text if self._space_prefix else text).replace(" ", SPACE)))

    def _merge(self, text: str) -> list[str]:
        symbols = list(text)  # a merged symbol lies at its left end; what it swallowed becomes ""
        before = list(range(-1, len(symbols) - 1))
        after = [*range(1, len(symbols)), -1]
        queue: list[tuple[float, int, int, str]] = []

        def offer(left: int, right: int) -> None:
            if left < 0 or right < 0:
                return
            joined = symbols[left] + symbols[right]
            if (found := self._pieces.get(joined)) is not None:
                heapq.heappush(queue, (-found[1], left, right, joined))

        for left in range(len(symbols) - 1):
            offer(left, left + 1)
        while queue:
            _, left, right, joined = heapq.heappop(queue)
            if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != joined:
                continue  # one of the two has been merged since
            symbols[left], symbols[right] = joined, ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])
        return [symbol for symbol in symbols if symbol]

    def _ids(self, symbols: list[str]) -> list[int]:
        ids: list[int] = []
        for symbol in symbols:
            if (found := self._pieces.get(symbol)) is not None:
                ids.append(found[0])
            else:
                ids.extend(self._byte_ids.get(byte, self._unk_id) for byte in symbol.encode())
        return ids
