"""Text of cells: its meaning in a column of each type, in stores, requests, events and text files.

Text files compare whole columns with `FORMS`, and convert them in Arrow; a property test compares the two.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any

import numpy as np

#: What a value of each type is, for messages.
WORDS: dict[str, str] = {
    "float": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "text": "a string",
    "timestamp": "a time in ISO 8601, such as '2024-01-31T13:45:00Z'",
}
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DATE = f"{_YEAR}-[0-9]{{2}}-[0-9]{{2}}"
_CLOCK = "[0-9]{2}(?::[0-9]{2}(?::[0-9]{2}(?:[.][0-9]+)?)?)?"
#: The text of a value of each type, but of text: a regular expression of Python and of Arrow.
FORMS: dict[str, str] = {
    "float": "[+-]?(?:[0-9]+(?:[.][0-9]*)?|[.][0-9]+)(?:[eE][+-]?[0-9]+)?",
    "integer": "-?(?:0|[1-9][0-9]*)",
    "boolean": "[tT]rue|TRUE|[fF]alse|FALSE",
    "timestamp": f"{_DATE}(?:[Tt ]{_CLOCK}(?:[Zz]|[+-][0-9]{{2}}(?::?[0-9]{{2}})?)?)?",
}
_FORMS = {kind: re.compile(form) for kind, form in FORMS.items()}
_FINER = re.compile("[.][0-9]{6}[0-9]*[1-9]")
#: float64 holds all integers up to this.
LARGEST = 2**53


def read_text(kind: str, text: str) -> Any:
    """A text as a float, int, bool, str, or datetime with a zone (UTC without one); None for blanks only.

    Raises: ValueError: it is no value of the type of column; says which text, and what the type has.
    """
    bare = text.strip()
    if kind == "text" or not bare:
        return bare or None
    wrong = f"{shown(text)} instead of {WORDS[kind]}"
    if not _FORMS[kind].fullmatch(bare):
        raise ValueError(wrong)
    if kind == "boolean":
        return bare.lower() == "true"
    if kind == "timestamp":
        if _FINER.search(bare):
            raise ValueError(f"{shown(text)} is finer than microseconds")
        try:
            moment = datetime.fromisoformat(bare.upper())
        except ValueError as error:
            raise ValueError(f"{wrong}: {error}") from None
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    number = float(bare)
    if not math.isfinite(number):
        raise ValueError(wrong)
    if abs(number) >= LARGEST and bare.lstrip("+-").isdecimal() and abs(int(bare.lstrip("+-0"))) > LARGEST:
        raise ValueError(f"{shown(text)} is beyond ±{LARGEST}")
    return number if kind == "float" else int(bare)


def shown(value: Any) -> str:
    """A value for a message, cut if it is long."""
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else f"{text[:60]}…"
