"""Draft sources, the trust in them, and the choice between them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trifolium.engine.drafts import Calibration, Draft, DraftBook, NgramDrafts, PreviewDrafts, reach


def rescan(tokens: list[int], limit: int) -> tuple[int, ...]:
    """Prompt look-up by scanning the text: the most recent earlier match of the longest suffix, 4 to 2 tokens."""
    for n in (4, 3, 2):
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[-n:]:
                grown = list(tokens)
                for i in range(limit):
                    grown.append(grown[start + n + i])
                return tuple(grown[len(tokens) :])
    return ()


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 12), st.integers(0, 20))
def test_the_index_finds_what_a_scan_finds(tokens, limit, prompt):
    drafts = NgramDrafts(tokens[:prompt])
    for token in tokens[prompt:]:
        drafts.push(token)
    found = drafts.propose(limit)
    assert found.tokens == rescan(tokens, limit)
    assert len(found.confidences) == len(found.tokens)


def test_loops_are_drafted_at_full_length():
    drafts = NgramDrafts([9, 1, 2, 3, 1, 2, 3, 1])
    assert drafts.propose(8).tokens == (2, 3, 1, 2, 3, 1, 2, 3)
    assert drafts.propose(100).tokens == ((2, 3, 1) * 9)[: NgramDrafts.LENGTH]
    assert NgramDrafts([1, 2, 3]).propose(5) == Draft()


def test_previews_are_good_for_one_position_only():
    previews = PreviewDrafts()
    previews.set(Draft((4, 5), (0.9, 0.8)))
    assert previews.propose(1).tokens == (4,)
    previews.push(4)
    assert previews.propose(5).tokens == ()


def test_calibration_lowers_and_restores_trust():
    calibration, draft = Calibration(), Draft((1, 2, 3), (0.8, 0.8, 0.8), "s", "kind")
    assert calibration.estimate(draft) == [0.8] * 3
    for _ in range(20):
        calibration.learn(draft, [9])
    assert calibration.estimate(draft)[0] < 0.2
    for _ in range(60):
        calibration.learn(draft, [1, 2, 3, 4])
    assert calibration.estimate(draft)[0] > 0.7
    other = Draft((1,), (0.8,), "s", "other")
    assert calibration.estimate(other) == [0.8]
    for _ in range(1000):
        calibration.learn(other, [1])
    assert calibration.estimate(other) == [0.98]


def test_what_lies_beyond_a_wrong_draft_or_the_emitted_text_teaches_nothing():
    calibration = Calibration()
    calibration.learn(Draft((1, 2, 3), (0.5, 0.5, 0.5), "s", "k"), [1])
    assert calibration.estimate(Draft((1,), (0.5,), "s", "k")) == [0.5 * 5 / 4.5]


class Fixed:
    def __init__(self, draft: Draft) -> None:
        self.draft, self.pushed = draft, []

    def push(self, token: int) -> None:
        self.pushed.append(token)

    def propose(self, limit: int) -> Draft:
        return self.draft.cut(limit)


def test_the_book_picks_the_most_promising_and_learns_about_all():
    short = Fixed(Draft((1,), (0.9,), "short", "short"))
    long = Fixed(Draft((2, 2, 2), (0.6, 0.6, 0.6), "long", "long"))
    book = DraftBook([short, long])
    assert book.best(8)[0].source == "long"  # .6 + .36 + .216 against .9
    assert book.best(1)[0].source == "short"
    assert book.best(0) == (Draft(), [])
    for _ in range(10):
        book.best(8)
        book.learn([1, 7])
    assert book.best(8)[0].source == "short"
    assert short.pushed == long.pushed == [1, 7] * 10


TREE = Draft((5, 6, 7, 8, 9), (0.5, 0.4, 0.5, 0.25, 1.0), "s", "k", (-1, -1, 0, 0, 3))


def test_reach():
    assert reach(Draft((1, 2, 3)), [0.5, 0.5, 1.0]) == [0.5, 0.25, 0.25]
    assert reach(Draft(), []) == []
    assert reach(TREE, TREE.confidences) == [0.5, 0.4, 0.25, 0.125, 0.125]


def test_trees():
    assert TREE.depths() == [1, 1, 2, 2, 3]
    assert TREE.children(-1) == [0, 1] and TREE.children(0) == [2, 3] and TREE.children(4) == []
    assert TREE.cut(2).tokens == (5, 6, 7, 8)
    assert TREE.cut(0) == Draft(source="s", kind="k", parents=())
    kept = TREE.keep([1, 0, 3, 4])
    assert kept.tokens == (6, 5, 8, 9) and kept.parents == (-1, -1, 1, 2)


def test_calibration_counts_any_of_the_alternatives():
    calibration = Calibration()
    calibration.learn(TREE, [5, 8, 1, 1])  # right, right, wrong
    assert calibration.estimate(Draft((1,), (0.5,), "s", "k")) == [0.5 * (2 + 4) / (0.9 + 0.75 + 1.0 + 4)]
