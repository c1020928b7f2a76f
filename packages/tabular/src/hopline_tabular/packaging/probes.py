"""Edge rows of an estimator: absent values, unknown categories, extremes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hopline.types import AnyArray
from hopline_tabular.packaging.encoders import UNKNOWN_STRING
from hopline_tabular.packaging.oracle import Oracle
from hopline_tabular.packaging.sample import Sample
from hopline_tabular.spec import Column

#: Rows of the sample on which each probe is tried.
_BASES = 3
_EXTREMES = (0.0, -1.0, 1e-6, 1e6, -1e6, 1e12, 1e30, -1e30)


@dataclass(frozen=True, slots=True)
class ColumnProbe:
    """Some rows that differ from rows of the sample in one column.

    Attributes:
        column: which.
        what: "absent", "unknown" or "extreme".
        value: put there.
        rows: with that value.
        answer: the estimator's; None where it refuses such rows.
    """

    column: Column
    what: str
    value: Any
    rows: Sample
    answer: AnyArray | None

    def __str__(self) -> str:
        return f"{self.column.name} {'absent' if self.value is None else f'= {self.value!r}'}"


def probe(oracle: Oracle, sample: Sample, columns: tuple[Column, ...]) -> Iterator[ColumnProbe]:
    """Call the estimator on edge rows for each of these columns."""
    bases = sample.take(range(min(_BASES, sample.num_rows)))
    for column in columns:
        for what, value in _edges(column, sample.rows[column.name]):
            rows = bases.of({**bases.rows, column.name: [value] * bases.num_rows})
            try:
                answer = oracle.answer(rows)
            except Exception:  # an estimator may raise any error on rows that it refuses
                answer = None
            yield ColumnProbe(column, what, value, rows, answer)


def _edges(column: Column, values: list[Any]) -> Iterator[tuple[str, Any]]:
    yield "absent", None
    if column.dtype == "string":
        yield "unknown", UNKNOWN_STRING
        yield "unknown", ""
        return
    known = [value for value in values if value is not None]
    low, high = (min(known), max(known)) if known else (0, 0)
    kind = int if column.dtype == "int" else float
    beyond = (low - 1, high + 1) if column.dtype == "int" else (low - 0.5, high + 0.5)
    for value in dict.fromkeys((low, high, *beyond, *_EXTREMES)):
        if column.dtype == "int" and (abs(value) > 2**53 or value != int(value)):
            continue
        yield "extreme", kind(value)
