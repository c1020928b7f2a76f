"""Preprocessing of a graph model: rows of a node type's columns in, features out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hopline.errors import BadRequest
from hopline.graph.node_columns import cell_of, shown
from hopline.types import FloatArray
from hopline_tabular.computer import ColumnCheck, made_up
from hopline_tabular.model import TabularModel
from hopline_tabular.spec import TabularSpec


class ColumnEncoder:
    """A packaged transformer, loaded; see `hopline.engine.encoders.RowEncoder`.

    Args:
        folder: of the graph model.
        model: `TabularSpec` of the transformer, whose `logits` are the features.
        types: column -> its type in the graph.

    Attributes:
        columns: name, type, whether null is allowed, and valid values, of each column.
        example: a row that is valid, for warming up.
    """

    def __init__(self, folder: Path, model: Mapping[str, Any], types: Mapping[str, str]) -> None:
        spec = msgspec.convert(model, TabularSpec)
        self._model = TabularModel(folder, spec)
        self._checks = [(column.name, ColumnCheck(column).check) for column in spec.columns]
        self._types = {column.name: types[column.name] for column in spec.columns}
        made = {"boolean": False, "timestamp": "1970-01-01"}
        self.example = {each.name: made.get(types[each.name], made_up(each)) for each in spec.columns}
        self.columns = [
            {
                "name": column.name,
                "type": types[column.name],
                "nullable": column.nullable,
                "values": list(column.values),
            }
            for column in spec.columns
        ]

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

    def rows(self, given: Sequence[Mapping[str, Any] | None], places: Sequence[str] = ()) -> FloatArray:
        """As `RowEncoder.rows`; a column that the preprocessing does not read is ignored."""
        columns: dict[str, list[Any]] = {name: [] for name in self._types}
        for place, row in enumerate(given):
            where = f"{places[place] if places else f'inline[{place}]'}.columns"
            for name, kind in self._types.items():
                if row is None or name not in row:
                    raise BadRequest(f"{where}: {name!r} is missing; a row has {self._takes()}")
                columns[name].append(_read(f"{where}: {name!r}", kind, row[name]))
        try:
            return self.encode(columns, len(given))
        except BadRequest as error:
            raise BadRequest(f"inline: {error}") from None

    def _takes(self) -> str:
        return ", ".join(
            f"{column['name']} ({column['type']}{', may be null' if column['nullable'] else ''})"
            for column in self.columns
        )


def _read(where: str, kind: Any, value: Any) -> Any:
    """A value of a request as the preprocessing reads it."""
    try:
        found = cell_of(kind, value)
    except ValueError as error:
        raise BadRequest(f"{where}: {error}") from None
    return found / 1e6 if kind == "timestamp" and found is not None else found
