from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hopline.generate.text import Detokenizer, StopStrings, decode_together


def decode(batch: Sequence[Sequence[int]]) -> list[str]:
    """Tokens are bytes."""
    return [bytes(tokens).decode("utf-8", "replace") for tokens in batch]


def pieces_of(data: bytes, sizes: list[int]) -> list[str]:
    detokenizer, found, at = Detokenizer(), [], 0
    while at < len(data):
        size = sizes[len(found) % len(sizes)]
        tokens = list(data[at : at + size])
        at += size
        found += decode_together(decode, [(detokenizer, tokens, at >= len(data))])
    return found


@given(st.text(min_size=1, max_size=40), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_pieces_are_whole_characters_and_together_the_text(text: str, sizes: list[int]) -> None:
    found = pieces_of(text.encode(), sizes)
    assert "".join(found) == text
    assert not any("\ufffd" in piece for piece in found if "\ufffd" not in text)


def test_bytes_that_never_become_a_character_are_not_held_for_ever() -> None:
    found = pieces_of(b"\xff" * 30, [1])
    assert any(found[:20])


@example("abc", ["abc", "b"], [1])
@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
def test_stop_strings_cut_as_on_the_whole_text(text: str, stops: list[str], sizes: list[int]) -> None:
    expected = text
    places = [text.find(stop) for stop in stops if stop in text]
    if places:
        # the text ends at the stop string that is complete first
        first_end = min(text.find(stop) + len(stop) for stop in stops if stop in text)
        longest = max(len(stop) for stop in stops if text[:first_end].endswith(stop))
        expected = text[: first_end - longest]
    found, shown, at = StopStrings(stops), "", 0
    index = 0
    while at < len(text) and not found.found:
        size = sizes[index % len(sizes)]
        index += 1
        piece = text[at : at + size]
        at += size
        shown += found.take(piece, is_last=at >= len(text))
    assert found.found == bool(places)
    if found.found:
        assert not any(stop in shown for stop in stops)
        assert text.startswith(shown)
        assert any(text.startswith(stop, len(shown)) for stop in stops)
        assert sizes != [1] or shown == expected
    else:
        assert shown == text


@pytest.mark.parametrize("last", [False, True])
def test_the_beginning_of_a_stop_string_is_held_until_the_end(last: bool) -> None:
    assert StopStrings(["END"]).take("the EN", is_last=last) == ("the EN" if last else "the ")
