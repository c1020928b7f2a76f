"""Whether the columns of a request are what a tabular model takes; every error names the column."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NoReturn

import numpy as np

from hopline.artifact import Column
from hopline.errors import BadRequest

#: Beyond it a number is infinite to models that compute in float32.
LARGEST = float(np.finfo(np.float32).max)
#: Beyond it a float64 no longer tells neighbouring whole numbers apart.
LARGEST_INT = 2**53

#: Values that are looked at one by one.
_FEW = 32

_WORDS = {"float": "a number", "int": "a whole number", "string": "a string"}
_TYPES: dict[str, type] = {"float": float, "int": int, "string": str}


class ColumnCheck:
    """Checks values of one column; made once for each, since requests are many.

    Args:
        column: what the model takes.
    """

    def __init__(self, column: Column) -> None:
        self.name = column.name
        self._column = column
        self._type: Any = _TYPES[column.dtype]
        self._is_text = column.dtype == "string"
        self._largest = LARGEST if column.dtype == "float" else LARGEST_INT
        self._values: Collection[Any] = frozenset(column.values)

    def check(self, values: Any) -> int:
        """Number of values.

        Args:
            values: list or array, one for each row.

        Raises:
            BadRequest: not a list, or a value that the column cannot have, with its row.
        """
        if type(values) is not list:
            if type(values) is not np.ndarray or values.ndim != 1 or values.size >= _FEW:
                return self._check_array(values)
            values = values.tolist()  # of a few, each costs less than one look at all of them
        count = len(values)
        if count == 1 and not self._values:  # most requests, at most values
            value = values[0]
            if type(value) is self._type and (self._is_text or -self._largest <= value <= self._largest):
                return 1
        if count < _FEW or not self._is_fine(values):
            self._check_each(values)
        if self._values:
            self._check_known(values)
        return count

    def _is_fine(self, values: list[Any]) -> bool:
        """Whether every value is of the usual type and size; a tenth of the time of looking at each."""
        kinds = set(map(type, values))
        if self._column.nullable:
            kinds.discard(type(None))
        if self._is_text:
            return kinds <= {str}
        if not kinds <= ({int, float} if self._column.dtype == "float" else {int}):
            return False
        try:
            array = np.array(values, dtype=np.float64)  # None becomes NaN
        except OverflowError:  # a whole number that no float holds
            return False
        fine = np.abs(array) <= self._largest
        if self._column.nullable:
            fine |= np.isnan(array)
        return bool(fine.all())

    def _check_array(self, values: Any) -> int:
        if isinstance(values, tuple):
            return self.check(list(values))
        if not isinstance(values, np.ndarray):
            self._refuse(None, f"{type(values).__name__} instead of a list of values")
        if values.ndim != 1:
            self._refuse(None, f"shape {list(values.shape)}; one value for each row is needed")
        if self._is_text or values.dtype.kind not in "fiu":
            return self.check(values.tolist())
        bad = ~((values >= -self._largest) & (values <= self._largest))
        if values.dtype.kind == "f":
            if self._column.dtype == "int":
                bad |= values != np.floor(values)
            if self._column.nullable:
                bad &= ~np.isnan(values)
        if bad.any():
            row = int(bad.argmax())
            self._refuse_value(row, values[row].item())
        if self._values:
            self._check_known(values.tolist())
        return len(values)

    def _check_each(self, values: Sequence[Any]) -> None:
        """The same value by value, and NaN, infinities and whole floats besides."""
        for row, value in enumerate(values):
            if value is None and self._column.nullable:
                continue
            kind = type(value)
            if self._is_text:
                if isinstance(value, str):
                    continue
            elif kind is float or kind is int or isinstance(value, np.number):
                if value != value and self._column.nullable:
                    continue
                is_whole = self._column.dtype == "float" or value == value // 1
                if -self._largest <= value <= self._largest and is_whole:
                    continue
            self._refuse_value(row, value)

    def _check_known(self, values: Sequence[Any]) -> None:
        for row, value in enumerate(values):
            if value is not None and value == value and value not in self._values:
                known = ", ".join(repr(one) for one in self._column.values[:10])
                more = ", …" if len(self._column.values) > 10 else ""
                self._refuse(row, f"{value!r} is unknown to the model; known are {known}{more}")

    def _refuse_value(self, row: int, value: Any) -> NoReturn:
        wanted = _WORDS[self._column.dtype]
        if value is None or value != value:
            self._refuse(row, f"no value, but {wanted} is needed")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not self._is_text and not -self._largest <= value <= self._largest:
            self._refuse(row, f"{value!r} is beyond ±{self._largest:g}")
        self._refuse(row, f"{_shown(value)} instead of {wanted}")

    def _refuse(self, row: int | None, text: str) -> NoReturn:
        at = "" if row is None else f", row {row}"
        raise BadRequest(f"column {self.name!r}{at}: {text}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
