"""From tokens to text, as they come: whole characters only, and nothing beyond a stop string.

A token may end within a character, so text is held back until its character is whole. A text that may be
the beginning of a stop string is held back until it is known not to be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_BROKEN = "\ufffd"
#: Characters in place of the bytes of an incomplete character: at most so many.
_MOST_BROKEN = 3
#: Tokens of a window that never ends with a whole character, as of bytes that are not text.
_LONGEST_WINDOW = 64


class Detokenizer:
    """Turns the tokens of one text into text. The window that is decoded again stays short.

    Algorithm: decode the last emitted tokens together with the new ones, and emit what is longer (as in
    Hugging Face's text-generation-inference): a tokenizer may write a token differently at the beginning.
    """

    __slots__ = ("_begin", "_done", "_extra", "_tokens")

    def __init__(self) -> None:
        self._tokens: list[int] = []
        #: The window begins here; the tokens before `_done` are emitted, and `_extra` characters behind.
        self._begin = self._done = self._extra = 0

    def take(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """Add tokens; returns what has to be decoded: the emitted part of the window, and all of it."""
        self._tokens += tokens
        return self._tokens[self._begin : self._done], self._tokens[self._begin :]

    def new_text(self, emitted: str, whole: str, *, is_last: bool) -> str:
        """The new text, by both decoded, without a character that is incomplete."""
        num_broken = min(len(whole) - len(whole.rstrip(_BROKEN)), _MOST_BROKEN)
        if is_last or len(self._tokens) - self._done >= _LONGEST_WINDOW:
            num_broken = 0
        new = whole[len(emitted) + self._extra : len(whole) - num_broken]
        if num_broken:
            self._extra += len(new)
        else:
            self._begin, self._done, self._extra = self._done, len(self._tokens), 0
        return new


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
