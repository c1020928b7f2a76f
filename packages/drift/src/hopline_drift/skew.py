"""Skew between what servers read and what a model was trained on: types, ranges, categories, missing cells.

Two samples of the same column differ by chance. Each limit here is the one that equal distributions exceed
once in some 30,000 comparisons, as that of `psi.CHANCE`, and a share below `Limits.share` is none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import msgspec
import numpy as np

from hopline.graph.cell_text import shown
from hopline.graph.schema import ColumnType
from hopline.graph.stored_columns import cells_of
from hopline.observe.psi import CHANCE, compare, number_bins
from hopline.types import AnyArray
from hopline_drift.bins import Sketch, category_bins

Kind = Literal["column", "type", "range", "category", "missing", "distribution", "row", "encoded"]
#: Values of a column that are named in a message.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits below which a difference is none.

    Attributes:
        share: of rows below which a difference is none.
        psi: index from which on a distribution is another one.
    """

    share: float = 0.01
    psi: float = 0.25


class Finding(msgspec.Struct, frozen=True):
    """A skew.

    Attributes:
        against: "graph", "training" or "model", with which the served values were compared.
        column: or feature. kind: of skew. text: what differs, with an example.
        share: of the compared rows that it concerns, or the index of a distribution.
    """

    against: str
    column: str
    kind: Kind
    text: str
    share: float


@dataclass(frozen=True, slots=True)
class Column:
    """Values of a column from one source.

    Attributes:
        kind: its type.
        cells: float64 [n], NaN for missing ones; or objects [n] of texts, None for missing ones. A boolean
            is 0 or 1, a time is in seconds since 1970. A value of another type is missing here.
        wrong: row -> why its value is none of the type.
    """

    kind: ColumnType
    cells: AnyArray
    wrong: dict[int, str]

    @classmethod
    def of(cls, kind: ColumnType, values: Sequence[Any]) -> Column:
        """Read values as the decoder of requests does."""
        cells, wrong = cells_of(kind, values)
        return cls(kind, cells / 1e6 if kind == "timestamp" else cells, wrong)

    @property
    def missing(self) -> AnyArray:
        """bool [n]: cells that are missing, without those of another type."""
        if self.cells.dtype == object:
            absent = np.array([cell is None for cell in self.cells], np.bool_)
        else:
            absent = np.isnan(self.cells)
        absent[list(self.wrong)] = False
        return absent

    @property
    def present(self) -> AnyArray:
        """The other cells."""
        there = ~self.missing
        there[list(self.wrong)] = False
        return self.cells[there]


def differences(
    name: str, served: Column, known: Column, against: str, limits: Limits
) -> Iterator[Finding]:
    """Skew of one column: of the values as a whole, not row by row.

    Args:
        served: of the log. known: of the graph or the training rows.
    """

    def found(kind: Kind, share: float, text: str) -> Finding:
        return Finding(against, name, kind, text, round(share, 6))

    for side, column in (("served", served), (against, known)):
        share = len(column.wrong) / max(1, len(column.cells))
        if share > limits.share:
            row = min(column.wrong)
            yield found("type", share, f"{share:.1%} of {side} values: {column.wrong[row]}")
    if not len(served.cells) or not len(known.cells):
        return
    p, q = float(known.missing.mean()), float(served.missing.mean())
    middle = (p * len(known.cells) + q * len(served.cells)) / (len(known.cells) + len(served.cells))
    noise = math.sqrt(middle * (1 - middle) * (1 / len(known.cells) + 1 / len(served.cells)))
    if abs(p - q) > max(limits.share, CHANCE * noise):
        yield found("missing", abs(p - q), f"{q:.1%} of served cells are missing, {p:.1%} in {against}")
    theirs, ours = served.present, known.present
    if not len(theirs) or not len(ours):
        return
    if served.kind == "text":
        counts = Counter(ours.tolist())
        strange = Counter(text for text in theirs.tolist() if text not in counts)
        once = sum(1 for count in counts.values() if count == 1) / len(ours)  # Good and Turing's estimate
        share = _above(strange.total(), len(theirs), once, len(ours), limits)
        if share:
            named = ", ".join(repr(text) for text, _ in strange.most_common(_NAMED))
            more = f" and {len(strange) - _NAMED} more" if len(strange) > _NAMED else ""
            yield found(
                "category", share, f"{share:.1%} of served texts are not in {against}: {named}{more}"
            )
    else:
        low, high = float(ours.min()), float(ours.max())
        outside = theirs[(theirs < low) | (theirs > high)]
        share = _above(len(outside), len(theirs), 2 / (len(ours) + 1), len(ours), limits)
        if share:
            far = outside[np.abs(outside - (low + high) / 2).argmax()]
            yield found(
                "range",
                share,
                f"{share:.1%} of served values are beyond {low:g} to {high:g} of {against}, up to {far:g}",
            )
    bins = category_bins(ours.tolist()) if served.kind == "text" else number_bins(ours)
    compared = compare(Sketch.of(bins, ours), Sketch.of(bins, theirs))
    if compared.above(limits.psi):
        text = (
            f"another distribution than in {against}: index {compared.excess:.2f}, most in {compared.bin!r}"
        )
        yield found("distribution", compared.excess, text)


def _above(count: int, of: int, expected: float, known: int, limits: Limits) -> float:
    """The share of values; 0 for one by chance.

    Args:
        expected: share that a sample of the same distribution has. known: values that it was taken of.
    """
    expected = min(1.0, max(expected, 1 / known))
    spread = math.sqrt(of * expected * (1 - expected) * (1 + of / known))
    if count > of * limits.share and count > of * expected + CHANCE * spread + 1:
        return count / of
    return 0.0


def row_differences(
    name: str,
    served: AnyArray,
    known: AnyArray,
    ids: Sequence[Any],
    against: str,
    limits: Limits,
    kind: Kind = "row",
) -> Iterator[Finding]:
    """Skew of one column or feature, row by row.

    Args:
        served, known: values of the same rows, [n]; missing ones are NaN or None.
        ids: of the rows, for the message.
    """
    if served.dtype == object or known.dtype == object:
        differ = np.array([one != other for one, other in zip(served, known, strict=True)], np.bool_)
    else:
        differ = (served != known) & ~(np.isnan(served) & np.isnan(known))
    share = float(differ.mean()) if len(differ) else 0.0
    if differ.any() and share > limits.share * (kind == "row"):
        at = int(differ.argmax())
        text = (
            f"{int(differ.sum()):,} of {len(differ):,} rows differ from {against}, such as {ids[at]!r}: "
            f"{shown(served[at])} served, {shown(known[at])} in {against}"
        )
        yield Finding(against, name, kind, text, round(share, 6))


def kind_of(values: Sequence[Any]) -> ColumnType:
    """The type of values without a schema."""
    types = {type(value) for value in values if value is not None}
    if types == {bool}:
        return "boolean"
    if types and all(issubclass(each, date) for each in types):
        return "timestamp"
    return "text" if any(issubclass(each, str) for each in types) else "float"
