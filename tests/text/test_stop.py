"""Stop strings: what streaming finds is what reading the text one character at a time would find."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trifolium.errors import UsageError
from trifolium.text import StopMatcher


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Read ever longer beginnings of the text until one ends with a stop; of several, the longest."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def stream(pieces: list[str], stops: list[str]) -> tuple[str, str | None, list[str]]:
    matcher = StopMatcher(stops)
    shown = []
    for piece in pieces:
        emit, stopped = matcher.push(piece)
        shown.append(emit)
        if stopped is not None:
            assert matcher.push("more") == ("", stopped)
            assert matcher.finish() == ""
            return "".join(shown), stopped, shown
    return "".join(shown) + matcher.finish(), None, shown


ALPHABET = st.text("ab\né👍", max_size=12)


@settings(max_examples=1000, deadline=None)
@given(text=ALPHABET, stops=st.lists(st.text("ab\né👍", min_size=1, max_size=5), max_size=4), data=st.data())
@example("aaab", ["aab"], None)
@example("abab", ["abac", "ab"], None)
@example("abcd", ["bc", "abcd", "c"], None)
def test_streaming_equals_reading_the_whole_text(text: str, stops: list[str], data: st.DataObject | None) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6))) if data else list(range(len(text) + 1))
    pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    shown, stopped, _ = stream(pieces, stops)
    assert (shown, stopped) == naive(text, stops)


@settings(max_examples=300, deadline=None)
@given(text=ALPHABET, stop=st.text("ab\né👍", min_size=1, max_size=5))
def test_one_stop_is_found_where_str_find_finds_it(text: str, stop: str) -> None:
    at = text.find(stop)
    assert stream(list(text), [stop])[:2] == ((text[:at], stop) if at >= 0 else (text, None))


@settings(max_examples=300, deadline=None)
@given(text=ALPHABET, stops=st.lists(st.text("ab\né👍", min_size=1, max_size=5), max_size=4))
def test_no_more_is_held_back_than_may_begin_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    emit, stopped = matcher.push(text)
    if stopped is None:
        held = text[len(emit) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)
        assert not any(stop.startswith(text[at:]) for stop in stops for at in range(len(emit)))


def test_stops_straddle_pushes() -> None:
    matcher = StopMatcher(["\nUser:", "</s>"])
    assert matcher.push("Hi") == ("Hi", None)
    assert matcher.push("\nUs") == ("", None)
    assert matcher.push("ual\n") == ("\nUsual", None)
    assert matcher.push("User") == ("", None)
    assert matcher.push(": x") == ("", "\nUser:")


def test_without_stops_nothing_is_held_back() -> None:
    matcher = StopMatcher([])
    assert matcher.push("abc") == ("abc", None)
    assert matcher.finish() == ""


@pytest.mark.parametrize("stops", ["abc", [""], ["a", ""], [3]])
def test_bad_stops_are_refused(stops: object) -> None:
    with pytest.raises(UsageError, match="non-empty strings"):
        StopMatcher(stops)  # type: ignore[arg-type]
