"""Input tables of a graph: one for each node type, one for each edge type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hopline.errors import GraphError
from hopline.graph.schema import ColumnGroup
from hopline.types import AnyArray

#: Source type, relation, destination type.
EdgeType = tuple[str, str, str]


@dataclass(frozen=True, slots=True, eq=False)
class NodeTable:
    """The nodes of one type. Omitted fields are inferred from the other fields, then from the edges.

    Attributes:
        features: [N, d], any real dtype; a [N] vector is one column.
        num_nodes: N.
        ids: the caller's N distinct ids, integers or strings, or an `IdIndex` of them; None means that
            row numbers are the ids.
        feature_names: d names, or empty.
        rounded: columns, by name or position, in which float32 may round large integers: here, in events
            and in the features of requests. Columns of fractions that exceed 2^24 are added.
        groups: the tensors that `features` were joined from, in order; empty if they are one.
        columns: a table of N rows (pandas, polars, Arrow) for the preprocessing of models, kept unchanged.
        column_types: name -> "float", "integer", "boolean", "text" (also for a code) or "timestamp", if the
            table has another type; of lists "vector", "vector=8", "codes" or "codes=a|b", see
            `list_columns.py`; "" keeps a column though it has the name of a label.
        time: as in `EdgeTable`, [N]: the node exists from then on. Edges from it without a time have its
            time. Models read it as the tensor `time`.
        time_unit: of these times, as in `EdgeTable`.
        history: times [H] of rows in place of `time`: `features`, `columns` and `ids` then have H rows in
            any order, several for each id. Each holds from its time on, the newest one now.
        history_since: all rows are known from this time on: none before can be asked for, and edges may be
            older than their source if its first row is not later than this.
    """

    features: Any = None
    num_nodes: int | None = None
    ids: Any = None
    feature_names: Sequence[str] = ()
    rounded: Sequence[str | int] = ()
    groups: Sequence[ColumnGroup] = ()
    columns: Any = None
    column_types: Mapping[str, str] = field(default_factory=dict)
    time: Any = None
    time_unit: str = ""
    history: Any = None
    history_since: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class EdgeTable:
    """The edges of one type.

    Attributes:
        edges: [2, E] or a pair (sources, destinations), in the caller's ids of either node type (row
            numbers where it has none); a member of the pair may be `Encoded`.
        attr: [E, d_e] numbers; an [E] vector is one column.
        time: [E] integers in one unit of the caller's choice, or NumPy datetimes.
        weight: [E] finite numbers.
        attr_names: d_e names, or empty.
        by_row: `edges` are row numbers even where the node types have ids.
        undirected: add the reverse of every edge that is not a self-loop, with the same columns. No edges
            are added if all edges have their reverse already; it is an error if only some have it.
        time_unit: "s", "ms", "us" or "ns", the unit of `time`; datetimes are converted to it. Empty means
            unknown, for datetimes their own unit.
        signed_weight: weights may become negative: a live graph then accepts edges with negative
            weights. Negative values in `weight` are accepted without it.
        rounded: columns of `attr`, as in `NodeTable`; rounded_weight: as `rounded`, for `weight`.
        columns, column_types: as in `NodeTable`, a row for each edge; instead of `attr`.
        id: a column among `columns`, kept as text: a distinct id for each edge, by which it is scored.
    """

    edges: Any
    attr: Any = None
    time: Any = None
    weight: Any = None
    attr_names: Sequence[str] = ()
    by_row: bool = False
    undirected: bool = False
    time_unit: str = ""
    signed_weight: bool = False
    rounded: Sequence[str | int] = ()
    rounded_weight: bool = False
    columns: Any = None
    column_types: Mapping[str, str] = field(default_factory=dict)
    id: str = ""


def check_by_type(given: Any, kind: type, hint: str) -> None:
    """Refuse anything but a mapping from types to tables or files of one kind."""
    name = kind.__name__
    if not isinstance(given, Mapping):
        raise GraphError(f"expected {name}s given by type, {{type: {name}(…)}}; got {type(given).__name__}")
    for each, table in given.items():
        if not isinstance(table, kind):
            raise GraphError(f"{each!r}: expected a {name}; got {type(table).__name__}. {hint}")
        if name.startswith("Edge") and (not isinstance(each, tuple) or len(each) != 3):
            raise GraphError(
                f"an edge type is a triple (source type, relation, destination type); got {each!r}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A long column of few distinct ids: row i is `distinct[codes[i]]`.

    Attributes:
        distinct: list of int or of str.
        codes: integers [n].
        place: row -> where it was read, for error messages; None if there was no file.
    """

    distinct: list[Any]
    codes: AnyArray
    place: Callable[[int], str] | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> Any:
        return self.distinct[self.codes[row]]


def as_array(value: Any, what: str) -> AnyArray:
    """View NumPy, list or tensor (CPU or not, sparse or not) as a dense NumPy array.

    Tensors are detected by their methods, not their type: this package also runs without torch.

    Raises: GraphError: it has no rectangular shape; a masked array hides some of its values.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        hidden = int(np.ma.getmaskarray(value).sum())
        raise GraphError(f"{what}: {hidden} values are masked; fill them (`.filled(0)`), or remove them")
    if isinstance(value, Encoded):
        return np.asarray(value.distinct)[value.codes]
    if hasattr(value, "toarray"):  # SciPy's sparse matrices
        value = value.toarray()
    if hasattr(value, "to_dense") and str(getattr(value, "layout", "")) != "torch.strided":
        value = value.to_dense()
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        # NumPy has no bfloat16.
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        try:
            value = value.numpy()
        except TypeError:
            raise GraphError(
                f"{what}: tensors of {value.dtype} cannot be read; convert them to float32"
            ) from None
    try:
        return np.asarray(value)
    except ValueError as error:
        raise GraphError(f"{what} is not a rectangular array: {error}") from None
