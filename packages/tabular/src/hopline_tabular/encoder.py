"""Preprocessing of a graph model: rows of a node type's columns in, features out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hopline.artifact import GRAPH_INPUTS
from hopline.errors import BadRequest
from hopline.graph.cell_text import WORDS, shown
from hopline.graph.list_columns import lists_of, with_places
from hopline.graph.stored_columns import cell_of
from hopline.types import FloatArray, TensorInfo
from hopline_tabular.computer import ColumnCheck, made_up
from hopline_tabular.model import TabularModel
from hopline_tabular.spec import TabularSpec

_DATATYPES = {"float": "FP64", "integer": "INT64", "boolean": "BOOL"}
_NULL = {True: ", may be null", False: ""}


class ColumnEncoder:
    """A packaged transformer, loaded; see `hopline.engine.encoders.RowEncoder`.

    Args:
        folder: of the graph model.
        model: `TabularSpec` of the transformer, whose `logits` are the features.
        types: column -> its type in the graph.

    Attributes:
        columns: name, type, whether null is allowed, and valid values, of each column.
        example: a row that is valid, for warming up. width: numbers of a row of features.
        inputs: the columns as tensors, without those whose names other tensors have.
    """

    def __init__(self, folder: Path, model: Mapping[str, Any], types: Mapping[str, str]) -> None:
        spec = msgspec.convert(model, TabularSpec)
        self._model = TabularModel(folder, spec)
        self._checks = [(one.name, ColumnCheck(one, WORDS[types[one.name]]).check) for one in spec.columns]
        self._types = {column.name: types[column.name] for column in spec.columns}
        self._lists = lists_of(types)
        made = {"boolean": False, "timestamp": "1970-01-01"}
        self.example = {each.name: made.get(types[each.name], made_up(each)) for each in spec.columns}
        self.columns: list[dict[str, Any]] = [
            {"name": one.name, "type": types[one.name], "nullable": one.nullable, "values": [*one.values]}
            for one in spec.columns
        ]
        self.width = spec.output_dim
        self.inputs = tuple(
            TensorInfo(name, _DATATYPES.get(kind, "BYTES"), (-1,), optional=True)
            for name, kind in self._types.items()
            if name not in GRAPH_INPUTS
        )

    def encode(self, columns: Mapping[str, Any], count: int) -> FloatArray:
        """As `RowEncoder.encode`."""
        for name, check in self._checks:
            check(columns[name])
        features = self._model.answer([columns], [count])
        good = np.isfinite(features).all(axis=1)
        if not good.all():
            row = int(good.argmin())
            given = {name: columns[name][row] for name in self._types}
            raise BadRequest(f"row {row}: the preprocessing has no finite result for {shown(given)}")
        return features

    def encode_each(
        self, columns: Mapping[str, Any], count: int, most: int
    ) -> tuple[FloatArray, dict[int, str]]:
        """As `RowEncoder.encode_each`: what is refused is found by halving."""
        refused, parts = dict[int, str](), [np.empty((0, self.width), np.float32)]
        ranges = [(0, count)] if count else []
        while ranges:
            begin, end = ranges.pop()
            if len(refused) <= most:
                try:
                    part = {name: columns[name][begin:end] for name in self._types}
                    parts.append(self.encode(part, end - begin))
                    continue
                except BadRequest as error:
                    if end - begin > 1:
                        middle = (begin + end) // 2
                        ranges += [(middle, end), (begin, middle)]
                        continue
                    refused[begin] = str(error).replace(", row 0:", ":").removeprefix("row 0: ")
            parts.append(np.full((end - begin, self.width), np.nan, np.float32))
        return np.concatenate(parts), refused

    def rows(self, given: Sequence[Mapping[str, Any] | None], places: Sequence[str] = ()) -> FloatArray:
        """As `RowEncoder.rows`."""
        places = places or [f"inline[{row}].columns" for row in range(len(given))]
        columns = self.read(given, places)
        try:
            return self.encode(columns, len(given))
        except BadRequest as error:
            for place, row in zip(places, given, strict=True) if len(given) > 1 else ():
                self.rows([row], [place])  # the first that is refused alone
            text = str(error).removeprefix("row 0: ").removeprefix("column ").replace(", row 0:", ":", 1)
            raise BadRequest(f"{places[0]}: {text}") from None

    def _missing(self, name: str) -> str:
        """The message for a row without a column. A list is named as a request has it."""
        of_list = {column: each for each, columns in self._lists.items() for column in columns}
        takes = {
            of_list.get(one["name"], one["name"]): "a list"
            if one["name"] in of_list
            else f"{one['type']}{_NULL[one['nullable']]}"
            for one in self.columns
        }
        shown = ", ".join(f"{each} ({kind})" for each, kind in takes.items())
        return f"{of_list.get(name, name)!r} is missing; a row has {shown}"

    def read(
        self, given: Sequence[Mapping[str, Any] | None], places: Sequence[str]
    ) -> dict[str, list[Any]]:
        """As `RowEncoder.read`; a column that the preprocessing does not read is ignored."""
        columns: dict[str, list[Any]] = {name: [] for name in self._types}
        for place, row in zip(places, given, strict=True):
            try:
                row = with_places(row or {}, self._lists)
            except ValueError as error:
                raise BadRequest(f"{place}: {error}") from None
            for name, kind in self._types.items():
                if name not in row:
                    raise BadRequest(f"{place}: {self._missing(name)}")
                try:
                    value = cell_of(kind, row[name])  # type: ignore[arg-type]
                except ValueError as error:
                    raise BadRequest(f"{place}: {name!r}: {error}") from None
                columns[name].append(value / 1e6 if kind == "timestamp" and value is not None else value)
        return columns
