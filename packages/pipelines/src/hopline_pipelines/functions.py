"""The functions that expressions may call: what each takes and gives, and what it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hopline_pipelines.values import Kind, Values, shape_in_words


class Term(NamedTuple):
    """A part of an expression.

    Attributes:
        kind, dims, by_row: its type, as in `ValueType`; the datatype shows when it is computed.
        of: computes it.
    """

    kind: Kind
    dims: tuple[int, ...]
    by_row: bool
    of: Callable[[Values], Any]


class Mismatch(Exception):
    """Terms that do not go together; the message says why."""


def alike(terms: Sequence[Term], kind: Kind | None, what: str) -> tuple[tuple[int, ...], bool]:
    """Common dims of terms of one kind, and whether any is by row.

    Raises: Mismatch.
    """
    wanted = kind or terms[0].kind
    for term in terms:
        if term.kind != wanted:
            raise Mismatch(f"{what} takes {_PLURALS[wanted]}{'' if kind else ' here'}, not a {term.kind}")
    dims = {term.dims for term in terms if term.by_row}
    if len(dims) > 1:
        shapes = " and ".join(shape_in_words(each) for each in sorted(dims))
        raise Mismatch(f"{what} takes values of one shape, not {shapes}; take a column with [number]")
    return (dims.pop(), True) if dims else ((), False)


def call(name: str, terms: Sequence[Term]) -> Term:
    """A call of a function of the table.

    Raises: Mismatch: no such function, or other terms than it takes.
    """
    if name in _OF_ONE:
        _count(name, terms, 1, 1)
        dims, by_row = alike(terms, "number", f"{name}()")
        return Term("truth" if name == "isnan" else "number", dims, by_row, _one(_OF_ONE[name], *terms))
    if name in _OF_MANY:
        _count(name, terms, *((3, 3) if name == "clip" else (2, 16)))
        dims, by_row = alike(terms, "number", f"{name}()")
        return Term("number", dims, by_row, _many(_OF_MANY[name], terms, by_row))
    if name == "where":
        return _where(terms)
    if name == "concat":
        return _concat(terms)
    raise Mismatch(f"no function {name!r}; there are {', '.join(sorted(NAMES))}")


def _count(name: str, terms: Sequence[Term], least: int, most: int) -> None:
    if not least <= len(terms) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise Mismatch(f"{name}() takes {wanted} values, not {len(terms)}")


def _one(function: Callable[[Any], Any], term: Term) -> Callable[[Values], Any]:
    of = term.of
    if term.by_row:
        return lambda values: function(of(values))
    # a Python number: NumPy's own scalars would widen the arrays that they meet
    return lambda values: function(of(values)).item()


def _many(function: Callable[..., Any], terms: Sequence[Term], by_row: bool) -> Callable[[Values], Any]:
    parts = [term.of for term in terms]
    if by_row:
        return lambda values: function(*[of(values) for of in parts])
    return lambda values: function(*[of(values) for of in parts]).item()


def _where(terms: Sequence[Term]) -> Term:
    _count("where", terms, 3, 3)
    condition, first, second = terms
    if condition.kind != "truth":
        raise Mismatch(f"where() takes a condition first, not a {condition.kind}")
    alike((first, second), None, "where()")
    dims, by_row = alike([term._replace(kind="truth") for term in terms], "truth", "where()")
    when, yes, no = condition.of, first.of, second.of
    if not by_row:
        return Term(first.kind, (), False, lambda values: yes(values) if when(values) else no(values))
    if first.kind == "text":
        return Term("text", dims, True, lambda values: _texts(when(values), yes(values), no(values)))
    return Term(first.kind, dims, True, lambda values: np.where(when(values), yes(values), no(values)))


def _texts(when: Any, yes: Any, no: Any) -> Any:
    return np.where(when, np.asarray(yes, object), np.asarray(no, object))


def _concat(terms: Sequence[Term]) -> Term:
    _count("concat", terms, 2, 64)
    width = 0
    for term in terms:
        if term.kind != "number" or not term.by_row or len(term.dims) > 1:
            raise Mismatch("concat() takes rows of numbers, [n] or [n, d]")
        if term.dims and term.dims[0] < 0:
            raise Mismatch("concat() takes values whose width is known")
        width += term.dims[0] if term.dims else 1
    parts = [term.of for term in terms]
    return Term("number", (width,), True, lambda values: np.column_stack([of(values) for of in parts]))


def _maximum(*values: Any) -> Any:
    found = values[0]
    for value in values[1:]:
        found = np.maximum(found, value)
    return found


def _minimum(*values: Any) -> Any:
    found = values[0]
    for value in values[1:]:
        found = np.minimum(found, value)
    return found


_PLURALS: dict[Kind, str] = {"number": "numbers", "truth": "conditions", "text": "texts"}
_OF_ONE: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs,
    "exp": np.exp,
    "isnan": np.isnan,
    "log": np.log,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
}
_OF_MANY: dict[str, Callable[..., Any]] = {"clip": np.clip, "maximum": _maximum, "minimum": _minimum}
NAMES = frozenset((*_OF_ONE, *_OF_MANY, "where", "concat"))
