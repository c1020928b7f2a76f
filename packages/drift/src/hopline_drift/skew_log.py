"""Compares the columns that servers logged with a graph's and with a training table; measures: skew.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hopline.engine.encoders import RowEncoder
from hopline.errors import BadRequest
from hopline.graph import Graph
from hopline.graph.cell_text import read_text
from hopline.graph.list_columns import lists_of, with_places
from hopline.graph.schema import ColumnType, GraphSchema
from hopline.types import AnyArray, ExternalId, FloatArray
from hopline_drift.log_reader import LogReader
from hopline_drift.skew import Column, Finding, Kind, Limits, differences, kind_of, row_differences
from hopline_drift.training import table_of, typed

#: Outcomes of requests whose inputs are read: those of refused rows are what callers send, too.
_READ = ("ok", "bad_request")
#: Logged nodes of a request with their tensors.
_MOST_ROWS = 64


@dataclass(slots=True)
class Logged:
    """Inputs of a model in a log, and what servers read of them.

    Attributes:
        rows: values by name of new nodes, or of rows of a tabular model. ids: of them, None without one.
        encoded: position in `rows` -> what preprocessing made of it.
        features: node -> what the model last read of it.
        others: another type -> columns of its new nodes, or of the edges of new nodes.
    """

    rows: list[Mapping[str, Any]] = field(default_factory=list)
    ids: list[Any] = field(default_factory=list)
    encoded: dict[int, FloatArray] = field(default_factory=dict)
    features: dict[ExternalId, FloatArray] = field(default_factory=dict)
    others: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        path: Path,
        model: str,
        version: str,
        node_type: str,
        names: Sequence[str],
        id_column: str,
        schema: GraphSchema | None = None,
    ) -> Logged:
        """Read a log.

        Args:
            version: "" for all of them.
            node_type: of the model; "" for a tabular one.
            names: of the features of new nodes without columns. id_column: of rows of a tabular model.
            schema: of the graph; without it, `others` are as requests name them.

        Raises: BadRequest: the log has no inputs of the model.
        """
        found, models = cls(), dict[str, int]()
        for entry in LogReader(path):
            models[entry.model] = models.get(entry.model, 0) + 1
            is_other = entry.model != model or version not in ("", entry.version)
            if is_other or entry.is_copy or entry.outcome not in _READ or entry.inputs is None:
                continue
            request = entry.inputs.request(entry.model, entry.version)
            first = len(found.rows)
            nodes = [(node_type, node) for node in request.inline]
            for kind, node in nodes + [(each.type or node_type, each) for each in request.context]:
                values = node.columns
                for key, sent in node.edge_attr.items():
                    found.others.setdefault(_own(schema, kind, key), []).extend(sent)
                if kind != node_type:
                    found.others.setdefault(kind, []).extend(filter(None, [values]))
                    continue
                if values is None:
                    values = dict(zip(names, np.asarray(node.features, np.float64).tolist(), strict=False))
                found.rows.append(values)
                found.ids.append(node.id)
            encoded = entry.tensors.get("inline.features", ())
            found.encoded |= {first + at: np.asarray(row, np.float32) for at, row in enumerate(encoded)}
            read = entry.tensors.get(f"nodes.{node_type}.features", ())
            for id, row in zip(list(request.nodes)[:_MOST_ROWS], read, strict=False):
                if not np.isnan(row).any():
                    found.features[id] = np.asarray(row, np.float32)
            if request.columns is not None:
                columns = {name: list(values) for name, values in request.columns.items()}
                for row in zip(*columns.values(), strict=True):
                    found.rows.append(dict(zip(columns, row, strict=True)))
                    found.ids.append(found.rows[-1].get(id_column))
        if not found.rows and not found.features:
            known = ", ".join(f"{name} ({count:,})" for name, count in models.items()) or "none"
            raise BadRequest(
                f"{path}: no logged inputs of new nodes or rows of {model!r}, and no tensors (set "
                f"prediction_log.tensors_share); entries by model: {known}"
            )
        return found


@dataclass(slots=True)
class Known:
    """Rows of a graph or a training table.

    Attributes:
        against: "graph" or "training". columns: by name. row_of: id -> row; {} without ids.
    """

    against: str
    columns: dict[str, Column]
    row_of: dict[ExternalId, int]

    def num_matched(self, logged: Logged) -> int:
        """Logged rows and nodes that are among these."""
        given = [id for id in (*logged.ids, *logged.features) if id is not None]
        return sum(id in self.row_of for id in given)

    @classmethod
    def of_graph(cls, graph: Graph, name: str, types: Mapping[str, ColumnType]) -> Known:
        """The rows of a type: columns of nodes or edges, or features of nodes by name."""
        own: Any = graph.edges[name] if name in graph.edges else graph.nodes[name]
        rows = np.empty(0, np.int64) if name in graph.edges else own.ids.nth(np.arange(own.ids.num_nodes))
        ids = own.ids.external(rows) if len(rows) else ()
        if own.columns is not None and (name in graph.edges or not own.features.shape[1]):
            values = own.columns.values(rows if len(rows) else slice(0, len(own.columns.table)))
        elif name in graph.edges:
            raise BadRequest(f"--graph: its {name} has no columns, which the model reads")
        else:
            values = dict(zip(types, np.asarray(own.features[rows], np.float64).T, strict=True))
        columns = {
            each: Column(kind, np.array(values[each], object if kind == "text" else np.float64), {})
            for each, kind in types.items()
        }
        return cls("graph", columns, {id: at for at, id in enumerate(np.asarray(ids, object).tolist())})

    @classmethod
    def of_table(cls, path: Path, id_column: str, types: Mapping[str, ColumnType]) -> Known:
        """The rows of a CSV or Parquet file; `types` {} takes them from the file.

        Raises: BadRequest: the file cannot be read, or has no such column.
        """
        values, is_text = table_of(path)
        if id_column and id_column not in values:
            raise BadRequest(f"--id: {path} has no column {id_column!r}; it has {', '.join(values)}")
        ids = values.get(id_column, []) if id_column else []
        for name, columns in lists_of(types).items():
            if name not in values:
                continue
            cells = [cell.split("|") if is_text and cell else cell for cell in values.pop(name)]
            try:
                rows = [with_places({name: cell}, {name: columns}) for cell in cells]
            except ValueError as error:
                raise BadRequest(f"{path}: column {error}") from None
            # the texts of a CSV file are read below
            values |= {each: [_text(row[each], is_text) for row in rows] for each in columns}
        found = dict[str, Column]()
        for name, cells in values.items():
            if not types and name == id_column:
                continue
            if types and name not in types:
                continue
            kind = types.get(name) or kind_of(typed(cells) if is_text else cells)
            found[name] = Column.of(kind, [_typed(kind, cell) for cell in cells] if is_text else cells)
        return cls("training", found, _rows_of(ids, is_text))


def _own(schema: GraphSchema | None, node_type: str, key: str) -> str:
    """The edge type that has the rows of a node's edges; `key` is "" for the only type that leads there."""
    edges = {} if schema is None else schema.edge_types
    return key or next((each for each, edge in edges.items() if edge.dst == node_type), "")


def _rows_of(ids: Sequence[Any], is_text: bool) -> dict[ExternalId, int]:
    """Id -> row; the ids of a file of texts are also those of integers."""
    found = {id: at for at, id in enumerate(ids)}
    if is_text:
        found |= {int(id): at for id, at in list(found.items()) if id and id.lstrip("-").isdecimal()}
    return found


def _text(value: Any, is_text: bool) -> Any:
    """A cell of a list, as the other cells of its file."""
    return str(value) if is_text and value is not None else value


def _typed(kind: ColumnType, text: str | None) -> Any:
    """A cell of a CSV file as a value of a type; another text unchanged."""
    try:
        return None if text is None else read_text(kind, text)
    except ValueError:
        return text


def _placed(row: Mapping[str, Any], lists: Mapping[str, tuple[str, ...]]) -> Mapping[str, Any]:
    """As `with_places`; a list that the server refused is no column."""
    with contextlib.suppress(ValueError):
        return with_places(row, lists)
    return row


def compare_columns(
    logged: Logged, known: Known, types: Mapping[str, ColumnType], limits: Limits
) -> Iterator[Finding]:
    """Skew of raw columns: of all values, and row by row where ids match."""
    against, lists = known.against, lists_of(types)
    sent = [_placed(row, lists) for row in logged.rows]
    for name, kind in types.items():
        there = known.columns.get(name)
        if there is None:
            yield Finding(against, name, "column", f"{against} has no column {name!r}", 1.0)
            continue
        rows = [at for at, row in enumerate(sent) if name in row]
        if sent and (share := 1 - len(rows) / len(sent)) > limits.share:
            yield Finding(
                "served", name, "column", f"{share:.1%} of served rows have no such column", share
            )
        served = Column.of(kind, [sent[at][name] for at in rows])
        yield from differences(name, served, there, against, limits)
        same = [
            (place, known.row_of[id])
            for place, at in enumerate(rows)
            if (id := logged.ids[at]) is not None and id in known.row_of and place not in served.wrong
        ]
        if same:
            ours, theirs = np.array(same).T
            ids = [logged.ids[rows[at]] for at in ours]
            yield from row_differences(name, served.cells[ours], there.cells[theirs], ids, against, limits)


def compare_features(
    logged: Logged, known: Known, encoder: RowEncoder | None, names: Sequence[str], limits: Limits
) -> Iterator[Finding]:
    """Skew of what the model read of known nodes, against what it reads of the same rows here."""
    ids = [id for id in logged.features if id in known.row_of]
    if not ids or any(column.wrong for column in known.columns.values()):
        return
    rows = np.array([known.row_of[id] for id in ids])
    served = np.stack([logged.features[id] for id in ids])
    columns = {name: column.cells[rows] for name, column in known.columns.items()}
    if encoder is None:
        expected = np.stack([columns[name] for name in names], axis=1).astype(np.float32)
    else:
        wanted = [each["name"] for each in encoder.columns]
        if not columns.keys() >= {*wanted}:
            return
        values = {
            name: columns[name].tolist() if columns[name].dtype == object else columns[name]
            for name in wanted
        }
        expected = encoder.encode(values, len(rows))
    yield from _matrix_differences(served, expected, names, ids, known.against, limits)


def compare_encoded(
    logged: Logged, encoder: RowEncoder, names: Sequence[str], limits: Limits
) -> Iterator[Finding]:
    """Skew of what preprocessing made of logged rows, against what the artifact makes of them here."""
    rows, expected = list[int](), list[FloatArray]()
    for at in logged.encoded:
        with contextlib.suppress(BadRequest):  # a row that is refused has no features: its types differ
            expected.append(encoder.rows([logged.rows[at]])[0])
            rows.append(at)
    if not rows:
        return
    served = np.stack([logged.encoded[at] for at in rows])
    yield from _matrix_differences(served, np.stack(expected), names, rows, "model", limits)


def _matrix_differences(
    served: AnyArray, here: AnyArray, names: Sequence[str], ids: Sequence[Any], against: str, limits: Limits
) -> Iterator[Finding]:
    """Skew of features, [n, width] each, row by row."""
    kind: Kind = "encoded" if against == "model" else "row"
    if served.shape != here.shape:
        text = f"servers had {served.shape[1]} features, {here.shape[1]} are made here"
        yield Finding(against, "features", "encoded", text, 1.0)
        return
    for at in range(here.shape[1]):
        name = names[at] if at < len(names) else f"f{at}"
        yield from row_differences(name, served[:, at], here[:, at], ids, against, limits, kind)
