"""Inputs of a request to a pipeline, checked against the declared ones, in arrays of declared types."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hopline.errors import BadRequest, PipelineInvalid, RequestTooLarge
from hopline.types import AnyArray, ScoreRequest
from hopline_pipelines.spec import (
    RESERVED_COLUMNS,
    AttributeInput,
    AttributeKind,
    ColumnInput,
    Constant,
    Inputs,
)
from hopline_pipelines.values import DTYPES, Values, ValueType, kind_of

_ATTRIBUTE_TYPES: dict[AttributeKind, str] = {
    "string": "BYTES",
    "number": "FP64",
    "integer": "INT64",
    "boolean": "BOOL",
}


class InputReader:
    """Reads requests.

    Args:
        inputs: as declared.
        max_rows: of one request.

    Raises:
        PipelineInvalid: nothing declared that has rows, an unknown type, a default of another type.

    Attributes:
        columns, attributes: name -> its type.
    """

    def __init__(self, inputs: Inputs, max_rows: int) -> None:
        self.takes_nodes, self.takes_pairs = inputs.nodes, inputs.pairs
        self._max_rows = max_rows
        if inputs.nodes and inputs.pairs:
            raise PipelineInvalid("inputs: nodes or pairs, not both; their rows would not be the same")
        if not (inputs.nodes or inputs.pairs or inputs.columns):
            raise PipelineInvalid("inputs: at least one of nodes, pairs and columns is needed")
        declared = {
            name: ColumnInput(each) if isinstance(each, str) else each
            for name, each in inputs.columns.items()
        }
        self.columns: dict[str, ValueType] = {}
        self._column_defaults: dict[str, Constant | None] = {}
        for name, column in declared.items():
            if name in RESERVED_COLUMNS:
                raise PipelineInvalid(f"inputs.columns: {name!r} means something else; use another name")
            try:
                kind_of(column.type)
            except PipelineInvalid as error:
                raise PipelineInvalid(f"inputs.columns.{name}: {error}") from None
            self.columns[name] = ValueType(column.type)
            self._column_defaults[name] = column.default
            if column.default is not None:
                try:
                    read_column(name, [column.default], column.type)
                except BadRequest as error:
                    raise PipelineInvalid(f"inputs.columns.{name}: default: {error}") from None
        self._attributes = {
            name: AttributeInput(each) if isinstance(each, str) else each
            for name, each in inputs.attributes.items()
        }
        for name, attribute in self._attributes.items():
            if attribute.default is not None:
                try:
                    _read_attribute(name, attribute.default, attribute.type)
                except BadRequest as error:
                    raise PipelineInvalid(f"inputs.attributes.{name}: default: {error}") from None
        self.attributes = {
            name: ValueType(_ATTRIBUTE_TYPES[each.type], (), False)
            for name, each in self._attributes.items()
        }

    def is_optional(self, column: str) -> bool:
        """True if requests may leave a column out."""
        return self._column_defaults[column] is not None

    def read(self, request: ScoreRequest, num_steps: int) -> Values:
        """The values of a request.

        Raises:
            BadRequest: what is missing, too much, of another type or of another length.
            RequestTooLarge: more rows than allowed.
        """
        num_rows = self._count(request)
        columns = {}
        given: Mapping[str, Any] = request.columns or {}
        for name, kind in self.columns.items():
            column = given.get(name)
            if column is None:
                default = self._column_defaults[name]
                if default is None:
                    raise BadRequest(
                        f"column {name!r} is missing; the pipeline takes {', '.join(self.columns)}"
                    )
                columns[name] = np.full(num_rows, default, DTYPES[kind.datatype])
                continue
            columns[name] = read_column(name, column, kind.datatype)
        return Values(num_rows, self._read_attributes(request.attributes or {}), columns, num_steps)

    def sample(self, num_steps: int) -> Values:
        """Made-up values of two rows."""
        return Values(
            2,
            {name: kind.sample(2) for name, kind in self.attributes.items()},
            {name: kind.sample(2) for name, kind in self.columns.items()},
            num_steps,
        )

    def _count(self, request: ScoreRequest) -> int:
        """Rows of a request."""
        counts: dict[str, int] = {}
        if len(request.nodes) or request.inline:
            if not self.takes_nodes:
                raise BadRequest(f"this pipeline takes no nodes; it takes {self.in_words()}")
            counts["nodes"] = len(request.nodes) + len(request.inline)
        if (ends := request.ends) is not None:
            if request.edges or not self.takes_pairs:
                what = "edges" if request.edges else "pairs"
                raise BadRequest(f"this pipeline takes no {what}; it takes {self.in_words()}")
            counts["pairs"], num_targets = map(len, ends)
            if counts["pairs"] != num_targets:
                raise BadRequest(f"pairs: {counts['pairs']} sources but {num_targets} destinations")
        columns = {}
        for name, column in (request.columns or {}).items():
            if name not in self.columns:
                raise BadRequest(f"unexpected column {name!r}; this pipeline takes {self.in_words()}")
            try:
                columns[name] = len(column)
            except TypeError:
                raise BadRequest(f"column {name!r} is not a list of values") from None
        wanted = "nodes" if self.takes_nodes else "pairs" if self.takes_pairs else ""
        if not (counts or columns) or (wanted and wanted not in counts):
            raise BadRequest(
                f"the request names no {wanted or 'rows'}; this pipeline takes {self.in_words()}"
            )
        num_rows = next(iter((*counts.values(), *columns.values())))
        if len({num_rows, *counts.values(), *columns.values()}) > 1:
            counts |= {f"column {name!r}": count for name, count in columns.items()}
            first = next(iter(counts))
            what, count = next((what, count) for what, count in counts.items() if count != num_rows)
            raise BadRequest(f"{num_rows} {first} but {count} values in {what}; rows go side by side")
        if num_rows == 0:
            raise BadRequest("the request has no rows; at least one is needed")
        if num_rows > self._max_rows:
            raise RequestTooLarge(
                f"{num_rows} rows in one request; at most {self._max_rows} are allowed "
                "(limits.max_nodes_per_request)"
            )
        return num_rows

    def in_words(self) -> str:
        """Inputs of a request."""
        parts = ["nodes"] * self.takes_nodes + ["pairs"] * self.takes_pairs
        if self.columns:
            parts.append(f"columns {', '.join(self.columns)}")
        return " and ".join(parts)

    def _read_attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for name, declared in self._attributes.items():
            value = given.get(name)
            if value is None:
                value = declared.default
                if value is None:
                    raise BadRequest(f"attribute {name!r} is missing; a {declared.type} is needed")
            found[name] = _read_attribute(name, value, declared.type)
        return found


def _read_attribute(name: str, value: Any, kind: AttributeKind) -> Any:
    wanted: dict[AttributeKind, Any] = {
        "string": str,
        "number": (int, float),
        "integer": int,
        "boolean": bool,
    }
    if not isinstance(value, wanted[kind]) or (isinstance(value, bool) and kind != "boolean"):
        raise BadRequest(f"attribute {name!r} is {value!r}; a {kind} is needed")
    if kind == "integer" and not -(2**63) <= value < 2**63:
        raise BadRequest(f"attribute {name!r} is beyond 64 bits")
    if kind == "number":
        try:
            return float(value)
        except OverflowError:
            raise BadRequest(f"attribute {name!r} is too large for a number") from None
    return value


def read_column(name: str, values: Sequence[Any] | AnyArray, datatype: str) -> AnyArray:
    """A column as an array [n] of its declared type; null is NaN in floats and None in texts.

    Raises: BadRequest: other types, or numbers that do not fit.
    """
    dtype = DTYPES[datatype]
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise BadRequest(f"column {name!r} has shape {list(values.shape)}; [n] is needed")
        if values.dtype == dtype and dtype.kind != "O":
            return values
    if dtype.kind == "O":
        items = values.tolist() if isinstance(values, np.ndarray) else values
        for item in items:
            if item is not None and not isinstance(item, str):
                raise BadRequest(f"column {name!r} is BYTES but holds {item!r}; texts are needed")
        found = np.empty(len(items), object)
        found[:] = items
        return found
    if isinstance(values, np.ndarray):
        return _cast(name, values, dtype, datatype)
    allowed = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float)}[dtype.kind]
    for item in values:
        if item is None and dtype.kind == "f":
            continue
        # also NumPy's own scalars, which are not Python numbers
        item = item.item() if isinstance(item, np.generic) else item
        if not isinstance(item, allowed) or (isinstance(item, bool) and dtype.kind != "b"):
            raise BadRequest(f"column {name!r} is {datatype} but holds {item!r}")
    try:
        return np.array([math.nan if item is None else item for item in values], dtype)
    except OverflowError:
        raise BadRequest(f"column {name!r} holds values that do not fit {datatype}") from None


def _cast(name: str, values: AnyArray, dtype: np.dtype[Any], datatype: str) -> AnyArray:
    if values.dtype.kind in "OUS":
        return read_column(name, values.tolist(), datatype)
    if values.dtype.kind not in {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[dtype.kind]:
        raise BadRequest(f"column {name!r} is {datatype} but holds {values.dtype}")
    if dtype.kind in "iu" and values.size:
        limits = np.iinfo(dtype)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            raise BadRequest(f"column {name!r} holds values that do not fit {datatype}")
    with np.errstate(over="ignore"):
        return values.astype(dtype)
