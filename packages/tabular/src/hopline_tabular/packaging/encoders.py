"""Converts encoders of categories to ONNX: a fitted encoder's outputs are tabulated, then looked up.

Each category of each column is passed to the encoder itself, and so is a value that it does not know. That
covers dropped, infrequent, absent and unknown categories of OneHotEncoder, OrdinalEncoder and TargetEncoder
without separate code for each: an encoder is a function of single columns, and these have few values.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from onnx import TensorProto
from sklearn.preprocessing import OneHotEncoder

from hopline.errors import PackagingError
from hopline.types import AnyArray
from hopline_tabular.packaging.graph import Kind, OnnxGraph, Ref
from hopline_tabular.spec import NULL_STRING

#: A string that no training data has: a private-use letter begins it.
UNKNOWN_STRING = "\ue000unknown"


@dataclass(frozen=True, slots=True)
class Tabulated:
    """An encoder's outputs for one column.

    Attributes:
        categories: as fitted; the absent value among them is None.
        answers: float64 [categories + 1, outputs]; the last row is of a value it does not know.
        outputs: indices among the encoder's outputs.
        is_closed: it refuses unknown values.
    """

    categories: list[Any]
    answers: AnyArray
    outputs: list[int]
    is_closed: bool


def encoder(graph: OnnxGraph, encoder: Any, refs: tuple[Ref, ...]) -> tuple[Ref, ...]:
    """Codes of the categories, looked up in the encoder's outputs."""
    tables, width = tabulate(encoder, refs)
    found: dict[int, Ref] = {}
    for kind in ("string", "number"):
        places = [place for place, ref in enumerate(refs) if ref.kind == kind and tables[place].outputs]
        if not places:
            continue
        chosen = [tables[place] for place in places]
        tensor = _encoded(graph, kind, [refs[place] for place in places], chosen, encoder)
        outputs = [output for table in chosen for output in table.outputs]
        for ref, output in zip(graph.columns(tensor, len(outputs)), outputs, strict=True):
            found[output] = ref
    for ref, table, values in zip(refs, tables, encoder.categories_, strict=True):
        if ref.origin is None:
            continue
        if table.is_closed:
            _close(graph, ref.origin, table.categories)
        if any(value is None for value in values):
            graph.nones.add(ref.origin)
    return tuple(found[output] for output in range(width))


def _encoded(
    graph: OnnxGraph, kind: Kind, refs: Sequence[Ref], tables: Sequence[Tabulated], encoder: Any
) -> str:
    """[n, outputs] of columns of one kind."""
    is_hot = isinstance(encoder, OneHotEncoder)
    own = _own_categories(tables) if is_hot else None
    if own is not None:  # a comparison for each output, without a table
        owner, categories = own
        if kind == "number":
            equal = _equal(graph, [refs[place] for place in owner], categories)
        else:
            codes, keys = _string_codes(graph, graph.matrix(refs), tables)
            wanted = [[keys[_key(value)] for value in categories]]
            equal = graph.node(
                "Equal", [_spread(graph, codes, owner, len(refs)), graph.const(wanted, np.int64)]
            )
        return graph.node("Cast", [equal], to=TensorProto.DOUBLE)
    if kind == "number":
        codes = _number_codes(graph, refs, tables)
        flat = [np.vstack([table.answers[-1:], table.answers[:-1]]) for table in tables]  # by code
    else:
        codes, keys = _string_codes(graph, graph.matrix(refs), tables)
        flat = _string_answers(tables, keys)
    return (_hot if is_hot else _looked_up)(graph, codes, flat)


def _own_categories(tables: Sequence[Tabulated]) -> tuple[list[int], list[Any]] | None:
    """For each output the column and the one category that it is 1 for; None if it is not so simple."""
    owner, categories = [], []
    for place, table in enumerate(tables):
        if table.answers[-1].any():
            return None
        for column in table.answers[:-1].T:
            hot = np.flatnonzero(column)
            if len(hot) != 1 or column[hot[0]] != 1:
                return None
            owner.append(place)
            categories.append(table.categories[int(hot[0])])
    return owner, categories


def tabulate(encoder: Any, refs: Sequence[Ref]) -> tuple[list[Tabulated], int]:
    """Call a fitted encoder for every category of every column; also return its number of outputs."""
    categories = [list(values) for values in encoder.categories_]
    unknown = [_unknown(values, ref) for values, ref in zip(categories, refs, strict=True)]
    rows = [[values[0] for values in categories]]  # the values of the other columns meanwhile
    for place, values in enumerate(categories):
        rows += [_with(rows[0], place, value) for value in values]
    answers = _transformed(encoder, rows, refs)
    width = answers.shape[1]
    tables, at, taken = [], 1, set()
    for place, values in enumerate(categories):
        mine = answers[at : at + len(values)]
        at += len(values)
        try:
            strange = _transformed(encoder, [_with(rows[0], place, unknown[place])], refs)
        except ValueError:
            strange = None
        seen = mine if strange is None else np.vstack([mine, strange])
        differs = ~((seen == answers[0]) | (np.isnan(seen) & np.isnan(answers[0]))).all(axis=0)
        outputs = [output for output in np.flatnonzero(differs).tolist() if output not in taken]
        taken.update(outputs)
        if strange is None:
            strange = np.zeros((1, width))
        whole = np.vstack([mine, strange])
        names = [None if value is None or value != value else value for value in values]
        tables.append(Tabulated(names, whole, outputs, len(seen) == len(mine)))
    _share_out([output for output in range(width) if output not in taken], tables)
    tables = [
        Tabulated(table.categories, table.answers[:, table.outputs], table.outputs, table.is_closed)
        for table in tables
    ]
    return tables, width


def _share_out(rest: list[int], tables: list[Tabulated]) -> None:
    """Assign outputs that never differ to columns with a single value."""
    single = [table for table in tables if not table.outputs and len(table.categories) == 1]
    if not rest:
        return
    each, left = divmod(len(rest), max(1, len(single)))
    if left or not single:
        tables[0].outputs.extend(rest)
        return
    for place, table in enumerate(single):
        table.outputs.extend(rest[place * each : (place + 1) * each])


def _unknown(values: list[Any], ref: Ref) -> Any:
    if ref.kind == "string":
        return UNKNOWN_STRING
    if any(isinstance(value, str) for value in values):
        raise PackagingError(f"column {ref.origin!r} holds numbers, but was encoded as text in training")
    return max((value for value in values if value == value), default=0) + 1


def _with(row: list[Any], place: int, value: Any) -> list[Any]:
    return [*row[:place], value, *row[place + 1 :]]


def _transformed(encoder: Any, rows: list[list[Any]], refs: Sequence[Ref]) -> AnyArray:
    names = getattr(encoder, "feature_names_in_", range(len(refs)))
    frame = pd.DataFrame(
        {
            name: pd.Series([row[place] for row in rows], dtype=object if ref.kind == "string" else None)
            for place, (name, ref) in enumerate(zip(names, refs, strict=True))
        }
    )
    given = frame if hasattr(encoder, "feature_names_in_") else frame.to_numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about the unknown value, which is intended
        answer = encoder.transform(given)
    dense = answer.toarray() if hasattr(answer, "toarray") else np.asarray(answer)
    return dense.astype(np.float64)


def _key(value: Any) -> str:
    return NULL_STRING if value is None else str(value)


def _string_codes(graph: OnnxGraph, x: str, tables: Sequence[Tabulated]) -> tuple[str, dict[str, int]]:
    """Codes int64 [n, columns] by one dictionary for all columns, which is returned too."""
    keys: dict[str, int] = {}
    for table in tables:
        for value in table.categories:
            keys.setdefault(_key(value), len(keys))
    codes = graph.node(
        "LabelEncoder",
        [x],
        domain="ai.onnx.ml",
        keys_strings=list(keys),
        values_int64s=list(keys.values()),
        default_int64=len(keys),
    )
    return codes, keys


def _string_answers(tables: Sequence[Tabulated], keys: dict[str, int]) -> list[AnyArray]:
    """The encoder's answers of each column, by code."""
    flat = []
    for table in tables:
        answers = np.repeat(table.answers[-1:], len(keys) + 1, axis=0)
        for value, answer in zip(table.categories, table.answers, strict=False):
            answers[keys[_key(value)]] = answer
        flat.append(answers)
    return flat


def _equal(graph: OnnxGraph, refs: Sequence[Ref], categories: Sequence[Any]) -> str:
    """Expression: each of some columns holds a number; None is NaN, which is equal to itself here."""
    values = np.array([categories], dtype=np.float64)
    spread = graph.matrix(refs)
    equal = graph.node("Equal", [spread, graph.const(values)])
    if not np.isnan(values).any():
        return equal
    absent = graph.node("And", [graph.node("IsNaN", [spread]), graph.const(np.isnan(values), np.bool_)])
    return graph.node("Or", [equal, absent])


def _number_codes(graph: OnnxGraph, refs: Sequence[Ref], tables: Sequence[Tabulated]) -> str:
    """Codes int64 [n, columns]: 1 and up by category, 0 for unknown values."""
    owner = [place for place, table in enumerate(tables) for _ in table.categories]
    categories = [value for table in tables for value in table.categories]
    equal = _equal(graph, [refs[place] for place in owner], categories)
    # sums of one 1 at most: exact
    numbers = np.zeros((len(categories), len(tables)))
    at = 0
    for place, table in enumerate(tables):
        count = len(table.categories)
        numbers[at : at + count, place] = np.arange(1, count + 1)
        at += count
    matched = graph.node(
        "MatMul", [graph.node("Cast", [equal], to=TensorProto.DOUBLE), graph.const(numbers)]
    )
    return graph.node("Cast", [matched], to=TensorProto.INT64)


def _looked_up(graph: OnnxGraph, codes: str, flat: Sequence[AnyArray]) -> str:
    """[n, outputs] of each column's answer for its code."""
    owner, offsets, values = [], [], []
    at = 0
    for place, answers in enumerate(flat):
        for column in answers.T:
            owner.append(place)
            offsets.append(at)
            values.append(column)
            at += len(column)
    spread = _spread(graph, codes, owner, len(flat))
    return _gathered(graph, spread, offsets, np.concatenate(values), np.float64)


def _hot(graph: OnnxGraph, codes: str, flat: Sequence[AnyArray]) -> str:
    """As `_looked_up`, if at most one output is 1: its number is looked up and compared."""
    offsets, values, owner = [], [], []
    at = begin = 0
    for place, answers in enumerate(flat):
        hot = np.where(answers.any(axis=1), answers.argmax(axis=1) + begin, -1)
        if (answers.sum(axis=1) > 1).any():  # outputs of other columns are among them
            return _looked_up(graph, codes, flat)
        offsets.append(at)
        values.append(hot)
        owner += [place] * answers.shape[1]
        at += len(hot)
        begin += answers.shape[1]
    numbers = _gathered(graph, codes, offsets, np.concatenate(values), np.int64)
    equal = graph.node(
        "Equal", [_spread(graph, numbers, owner, len(flat)), graph.const([list(range(begin))], np.int64)]
    )
    return graph.node("Cast", [equal], to=TensorProto.DOUBLE)


def _spread(graph: OnnxGraph, columns: str, owner: Sequence[int], num_columns: int) -> str:
    """One column for each output: that of the column which owns it."""
    if list(owner) == list(range(num_columns)):
        return columns
    return graph.node("Gather", [columns, graph.const(owner, np.int64)], axis=1)


def _gathered(graph: OnnxGraph, codes: str, offsets: Sequence[int], values: AnyArray, dtype: Any) -> str:
    """`values[codes + offsets]`: the columns' tables are concatenated."""
    if any(offsets):
        codes = graph.node("Add", [codes, graph.const([list(offsets)], np.int64)])
    return graph.node("Gather", [graph.const(values, dtype), codes], axis=0)


def _close(graph: OnnxGraph, column: str, categories: list[Any]) -> None:
    before = graph.closed.get(column)
    graph.closed[column] = tuple(
        value for value in categories if value is not None and (before is None or value in before)
    )
