"""From tokens to text, as they come: whole characters only, and nothing beyond a stop string.

A token may end within a character, so text is held back until its character is whole. A text that may be
the beginning of a stop string is held back until it is known not to be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_BROKEN = "\ufffd"
#: Tokens of one character at most; what is still no text after so many never will be.
_MOST_HELD = 8


class Detokenizer:
    """Turns the tokens of one text into text. The window that is decoded again stays short.

    Algorithm: decode the last emitted token together with the new ones, and emit what is longer (as in
    Hugging Face's text-generation-inference): a tokenizer may write a token differently at the beginning.
    """

    __slots__ = ("_begin", "_done", "_tokens")

    def __init__(self) -> None:
        self._tokens: list[int] = []
        #: The window begins here, and everything before `_done` is emitted.
        self._begin = self._done = 0

    def take(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """Add tokens; returns what has to be decoded: the emitted part of the window, and all of it."""
        self._tokens += tokens
        return self._tokens[self._begin : self._done], self._tokens[self._begin :]

    def new_text(self, emitted: str, whole: str, *, is_last: bool) -> str:
        """The new text, by both decoded; "" while a character is incomplete."""
        is_whole = not whole.endswith(_BROKEN) or len(self._tokens) - self._done >= _MOST_HELD
        if len(whole) <= len(emitted) or not (is_whole or is_last):
            return ""
        self._begin, self._done = self._done, len(self._tokens)
        return whole[len(emitted) :]


class StopStrings:
    """Cuts a text before the first of its stop strings.

    Attributes:
        found: whether a stop string came; no text follows.
    """

    __slots__ = ("_held", "_longest", "_stops", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        self.found = False
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._held = ""

    def take(self, text: str, *, is_last: bool) -> str:
        """Add text; returns what may be shown now."""
        if not self._stops:
            return text
        text = self._held + text
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)]
        held = 0 if is_last else self._num_held(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _num_held(self, text: str) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0


def decode_together(
    decode: Callable[[Sequence[Sequence[int]]], list[str]],
    texts: Sequence[tuple[Detokenizer, Sequence[int], bool]],
) -> list[str]:
    """The new text of several, with one call of the tokenizer.

    Args:
        texts: each with its new tokens, and whether they are its last.
    """
    windows = [detokenizer.take(tokens) for detokenizer, tokens, _ in texts]
    wanted = [tokens for window in windows for tokens in window if tokens]
    decoded = iter(decode(wanted) if wanted else ())
    found = []
    for (detokenizer, _, is_last), (emitted, whole) in zip(texts, windows, strict=True):
        before = next(decoded) if emitted else ""
        found.append(detokenizer.new_text(before, next(decoded) if whole else "", is_last=is_last))
    return found
