"""Preprocessing of a model: columns become features of nodes and attributes of edges.

The engine reads float32 rows only. The rows that a model's preprocessing makes of a graph's columns are
computed when the model is loaded. The workers of a host, and versions with equal preprocessing, map the
same file. Inline nodes are encoded in the request. This file is long because packaging, snapshots and live
graphs share what is in it.

The package for tabular models (`hopline[tabular]`) converts and runs preprocessing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import quote

import msgspec
import numpy as np

from hopline.artifact import EDGE_ENCODER_FORMAT, ENCODER_FORMAT, Encoder, ModelSpec
from hopline.doors import Door
from hopline.engine.embeddings import AnyGraph
from hopline.errors import ArtifactError, BadRequest, PackagingError, ParityError, SchemaMismatch
from hopline.files import locked
from hopline.graph import Adjacency, EdgeTypeSchema, Graph, GraphSchema, Nodes, NodeTypeSchema
from hopline.graph.digest import digests
from hopline.graph.live.columns import LiveColumns
from hopline.graph.live.rows import find_late, set_ready
from hopline.graph.live.view import LiveAdjacency, LiveNodes, LiveRows, LiveView
from hopline.graph.store_columns import is_in_store
from hopline.graph.stored_columns import StoredColumns, values_of
from hopline.memory.arena import Arena, array_bytes
from hopline.runtimes.ort import ort
from hopline.types import FloatArray, IdArray, Progress, TensorInfo

log = logging.getLogger(__name__)

#: Brings preprocessing: the kind of models that read rows of columns.
TABULAR = Door("hopline.model_kinds", packages={"tabular": "'hopline[tabular]'"})
#: Rows of the graph on which the converted form is compared with the fitted object.
_COMPARED = 10_000
#: Rows that are encoded in one call.
_CHUNK = 65_536
#: Rows of a live graph that preprocessing may not accept when a model is loaded.
_MOST_REFUSED = 100
#: Seconds after its last use until a file of features is removed.
_KEPT_S = 7 * 86_400


class RowEncoder(Protocol):
    """Preprocessing, loaded.

    Attributes:
        columns: those that it reads, for the description of a model; inputs: as tensors. example: a row.
    """

    columns: list[dict[str, Any]]
    inputs: tuple[TensorInfo, ...]
    example: dict[str, Any]

    def encode(self, columns: Mapping[str, Any], count: int) -> FloatArray:
        """Features of rows, float32 [n, width].

        Args:
            columns: of a graph, in the form of `StoredColumns.values`.

        Raises: BadRequest: a value that the preprocessing does not accept; names the column, row and value.
        """

    def encode_each(
        self, columns: Mapping[str, Any], count: int, most: int
    ) -> tuple[FloatArray, dict[int, str]]:
        """As `encode`, with NaN for refused rows, and why; after more than `most`, NaN for the rest."""

    def rows(self, given: Sequence[Mapping[str, Any] | None], places: Sequence[str] = ()) -> FloatArray:
        """Features of rows of a request, float32 [n, width].

        Args:
            places: of the rows in the request, for messages.

        Raises: BadRequest: as `encode`, with the place; a column is missing.
        """

    def read(
        self, given: Sequence[Mapping[str, Any] | None], places: Sequence[str]
    ) -> dict[str, list[Any]]:
        """Rows of a request in the form of `StoredColumns.values`, by column."""


def columns_read(spec: ModelSpec, name: str) -> dict[str, str]:
    """The columns that a model's preprocessing reads of a node type or edge type, with their types."""
    schema: Any = spec.graph_schema
    types = schema["edge_types" if name in schema["edge_types"] else "node_types"]
    return {column["name"]: column["type"] for column in types[name]["columns"]}


def encoder_of(folder: Path, spec: ModelSpec, name: str) -> RowEncoder:
    """The preprocessing of a node type or edge type that has one.

    Raises: ArtifactError: its package is not installed, or the file cannot be loaded.
    """
    model, columns = spec.encoders[name].model, columns_read(spec, name)
    try:
        found: RowEncoder = TABULAR.require("tabular").encoder(folder, model, columns)
    except ImportError as error:
        raise ArtifactError(f"{spec.name}/{spec.version} has preprocessing: {error}") from None
    return found


def with_features(schema: GraphSchema, encoders: Mapping[str, Encoder]) -> GraphSchema:
    """The schema of a graph whose columns were encoded."""
    changed = msgspec.structs.replace
    types = {name: changed(node, columns=()) for name, node in schema.node_types.items()}
    edges = {key: changed(edge, columns=()) for key, edge in schema.edge_types.items()}
    for name, encoder in encoders.items():
        if name in types:
            types[name] = changed(types[name], feature_dim=encoder.width, feature_names=encoder.names)
        for key in [name, *_derived(schema, name)] if name in edges else ():
            edges[key] = changed(edges[key], attr_dim=encoder.width, attr_names=encoder.names)
    return GraphSchema(types, edges)


def _derived(schema: GraphSchema, name: str) -> list[str]:
    """Edge types that have the edges of a type against their direction."""
    return [key for key, edge in schema.edge_types.items() if edge.reverse_of == name]


def _turned(rows: FloatArray, edges: Adjacency) -> Iterator[FloatArray]:
    """The rows of edges in the order of the lists of the other direction."""
    yield rows[edges.reverse_order()]


def _part(graph: Graph, name: str) -> Nodes | Adjacency:
    return graph.edges[name] if name in graph.edges else graph.nodes[name]


def _schema(schema: GraphSchema, name: str) -> NodeTypeSchema | EdgeTypeSchema:
    return schema.edge_types[name] if name in schema.edge_types else schema.node_types[name]


def features_of(graph: Graph, rows: Mapping[str, FloatArray], encoders: Mapping[str, Encoder]) -> Graph:
    """A graph with encoded features, of a history behind those of now, and no columns in its schema."""
    nodes = dict(graph.nodes)
    for key in nodes.keys() & rows.keys():
        part, own = nodes[key], rows[key]
        past = part.history and replace(part.history, features=own[part.num_nodes :])
        nodes[key] = replace(part, features=own[: part.num_nodes], history=past)
    edges = {key: replace(part, attr=rows.get(key, part.attr)) for key, part in graph.edges.items()}
    return Graph(with_features(graph.schema, encoders), nodes, edges, left_out=graph.left_out)


def encoded(folder: Path, spec: ModelSpec, graph: AnyGraph) -> AnyGraph:
    """The graph with the features and attributes that a model's preprocessing makes of its columns.

    Raises:
        SchemaMismatch: the preprocessing does not accept a value of the graph, or many of a live one.
        ArtifactError: the graph comes from a store without columns.
    """
    if not spec.encoders:
        return graph
    if isinstance(graph, LiveView):
        loaded = {name: encoder_of(folder, spec, name) for name in spec.encoders}
        arrays: dict[str, tuple[IdArray, FloatArray]] = {}
        for name, encoding in spec.encoders.items():
            part = graph.edges[name] if name in graph.edges else graph.nodes[name]
            with _arrays(graph.memory.plan.nonce, encoding, name, *[len(part.since)] * 2) as arrays[name]:
                pass

        def adapt(view: LiveView) -> None:
            for name, encoder in loaded.items():
                if name in view.nodes:
                    view.nodes[name] = EncodedNodes(name, view.nodes[name], encoder, arrays[name])
                for key in [name, *_derived(view.schema, name)] if name in view.edges else ():
                    rows = _EncodedRows(name, view.edges[name], encoder, arrays[name])
                    view.edges[key].attr = EncodedEdges(view.edges[key], rows)
            view.schema = with_features(view.schema, spec.encoders)

        adapt(graph)
        graph.adapt = adapt
        with graph:
            for name in loaded:
                made: Any = graph.edges[name].attr if name in graph.edges else graph.nodes[name]
                made.encode_all()
        return graph
    stored = [key for key, edges in graph.edges.items() if key in spec.encoders and is_in_store(edges)]
    if stored or any(_part(graph, name).columns is None for name in spec.encoders):
        raise ArtifactError(
            f"{spec.name}/{spec.version} has preprocessing of {', '.join(stored or spec.encoders)} "
            "(preprocess=), and a graph store does not hold columns yet; serve a snapshot"
            + (", without graph.memory = 'disk'" if stored else "")
        )
    found: dict[str, FloatArray] = {}
    for name, encoding in spec.encoders.items():
        made = encode_rows(encoder_of(folder, spec, name), graph, name)
        found[name] = _shared(graph, name, encoding, made)
        for key in _derived(graph.schema, name):
            found[key] = _shared(graph, key, encoding, _turned(found[name], graph.edges[name]))
    served = features_of(graph, found, spec.encoders)
    vars(served).update(version=graph.version, path=graph.path)  # answers name the graph as it is stored
    return cast(AnyGraph, served)


class _EncodedRows:
    """Rows of a live graph that are made of its columns, at the latest when they are read.

    All processes that share the graph's memory write the same rows, and only of the version that they
    pinned: no slot that a version has is reused while a process may write it.

    Args:
        name: of the type. columns: of the graph.
        arrays: `ready` and the rows.
    """

    def __init__(
        self, name: str, columns: LiveColumns, encoder: RowEncoder, arrays: tuple[IdArray, FloatArray]
    ) -> None:
        self._name = name
        self._columns = columns
        self._encoder = encoder
        self.ready, self.rows = arrays

    def encode(self, slots: IdArray) -> list[tuple[int, str]]:
        """Make missing rows; returns slots that are not accepted, with the reason."""
        columns, late = self._columns, np.empty(len(slots), np.int64)
        if not len(late := np.unique(late[: find_late(slots, columns.since, self.ready, late)])):
            return []
        values = values_of(columns.column_schemas, *columns.cells(late))
        rows, wrong = self._encoder.encode_each(values, len(late), _MOST_REFUSED)
        good = np.isfinite(rows).all(axis=1)
        self.rows[late] = rows
        set_ready(late[good], columns.since, self.ready)
        return [(int(late[at]), why) for at, why in wrong.items()]

    def encode_all(self, parts: Iterable[IdArray], place: Callable[[int], str]) -> None:
        """Make the rows of the pinned version. Rows that are not accepted are refused when they are read.

        Args:
            parts: slots. place: of a row, in words, by its slot.

        Raises: SchemaMismatch: many rows are not accepted.
        """
        refused = list[tuple[int, str]]()
        for slots in parts:
            refused += self.encode(slots)
            if len(refused) > _MOST_REFUSED:
                raise self.refusal(place(refused[-1][0]), refused[-1][1])
        if refused:
            log.warning("%d rows of type %r: %s", len(refused), self._name, refused[0][1])

    def refusal(self, place: str, reason: str) -> SchemaMismatch:
        """The error of a row that is read and not accepted."""
        why = f"{place} of type {self._name!r}: {reason}"
        return SchemaMismatch(why, [why])


class EncodedNodes(LiveNodes):
    """Nodes of a live graph whose features are made of their columns.

    Args:
        name: of the node type.
        arrays: `ready` and the features.
    """

    def __init__(
        self, name: str, nodes: LiveNodes, encoder: RowEncoder, arrays: tuple[IdArray, FloatArray]
    ) -> None:
        vars(self).update(vars(nodes))
        self._encoded = _EncodedRows(name, nodes, encoder, arrays)
        self.ready = self._encoded.ready
        self.features = _EncodedFeatures(self, self._encoded.rows)
        self.history = nodes.history and nodes.history.of(self)

    def slots(self, ids: IdArray) -> IdArray:
        """As `LiveNodes.slots`, after making the rows that are missing. Raises: as `made`."""
        return self.made(ids, super().slots(ids))

    def made(self, ids: IdArray, slots: IdArray) -> IdArray:
        """As `LiveNodes.made`, after making the rows that are missing.

        Raises: SchemaMismatch: the preprocessing does not accept a value; names the node and the column.
        """
        if refused := self._encoded.encode(slots):
            slot, reason = refused[-1]
            place = self._shown(slot, ids, slots)
            raise self._encoded.refusal(place, f"{reason}; set its columns (set_features)")
        return slots

    def read(self, ids: IdArray) -> IdArray:
        """The slots of nodes; rows that are not accepted are NaN."""
        found = super().slots(ids)
        self._encoded.encode(found)
        return found

    def encode_all(self) -> None:
        """As `_EncodedRows.encode_all`."""
        ids = np.delete(np.arange(self.num_nodes), self.ids.removed)
        slots = super().slots(ids)
        self._encoded.encode_all(_parts(slots), lambda slot: self._shown(slot, ids, slots))

    def _shown(self, slot: int, ids: IdArray, slots: IdArray) -> str:
        (node,) = np.asarray(self.ids.external(ids[slots == slot][:1]), object)
        return f"node {node!r}"


class _EncodedFeatures(LiveRows):
    """As `LiveRows`; a row that the preprocessing does not accept is NaN."""

    _nodes: EncodedNodes

    def __getitem__(self, ids: Any) -> FloatArray:
        found: FloatArray = self.array[self._nodes.read(np.atleast_1d(np.asarray(ids, np.int64)))]
        return found[0] if np.ndim(ids) == 0 else found


class EncodedEdges:
    """Attributes of live edges by their positions, made of columns.

    Args:
        edges: of the type or of the one that is derived from it. encoded: rows of the type.
    """

    def __init__(self, edges: LiveAdjacency, encoded: _EncodedRows) -> None:
        self._edges, self._encoded = edges, encoded
        self.shape = len(edges.indices), encoded.rows.shape[1]

    def __getitem__(self, positions: IdArray) -> FloatArray:
        slots = self._edges.slots(positions)
        if refused := self._encoded.encode(slots):
            raise self._encoded.refusal("an edge", f"{refused[-1][1]}; remove it, and add it with others")
        found: FloatArray = self._encoded.rows[slots]
        return found

    def encode_all(self) -> None:
        """As `_EncodedRows.encode_all`."""
        self._encoded.encode_all(_parts(self._edges.slots(self._edges.positions())), lambda slot: "an edge")


def _parts(slots: IdArray) -> Iterator[IdArray]:
    return (slots[begin : begin + _CHUNK] for begin in range(0, len(slots), _CHUNK))


def encode_rows(encoder: RowEncoder, graph: Graph, name: str) -> Iterator[FloatArray]:
    """The rows of all nodes or edges of a type, then those of a history, some at a time.

    Raises: SchemaMismatch: a value is not accepted; names the column, row and value.
    """
    part, what = _part(graph, name), f"{'edges' if name in graph.edges else 'nodes'} of type {name!r}"
    assert part.columns is not None
    removed = part.ids.removed if isinstance(part, Nodes) else np.empty(0, np.int64)
    yield from _encoded(encoder, part.columns, removed, what)
    if isinstance(part, Nodes) and part.history is not None and part.history.columns is not None:
        gone = np.isin(np.arange(part.num_nodes), removed)
        removed = np.flatnonzero(np.repeat(gone, np.diff(part.history.offsets)))
        yield from _encoded(encoder, part.history.columns, removed, f"the history of {what}")


def _encoded(by: RowEncoder, columns: StoredColumns, removed: IdArray, what: str) -> Iterator[FloatArray]:
    count = len(columns.table)
    for begin in range(0, count, _CHUNK):
        end = min(begin + _CHUNK, count)
        try:
            gone = removed[np.searchsorted(removed, begin) : np.searchsorted(removed, end)]
            if not len(gone):
                yield by.encode(columns.values(slice(begin, end)), end - begin)
                continue
            kept = np.delete(np.arange(begin, end), gone - begin)
            found = by.encode(columns.values(kept), len(kept))
            rows = np.zeros((end - begin, found.shape[1]), np.float32)
            rows[kept - begin] = found
            yield rows
        except BadRequest as error:
            where = f"{what}, counted from row {begin}" if begin else what
            raise SchemaMismatch(f"{where}: {error}", [str(error)]) from None


def _shared(graph: Graph, name: str, encoding: Encoder, made: Iterable[FloatArray]) -> FloatArray:
    """The rows of a type, made by the first process that needs them, and compared by the others."""
    version, own = "" if graph.path is None else graph.version, _part(graph, name)
    count = own.num_edges if isinstance(own, Adjacency) else own.num_nodes
    if isinstance(own, Nodes) and own.history is not None:
        count += len(own.history.times)
    with _arrays(version, encoding, name, 1, count) as (ready, rows):
        if not ready[0] or ready[0] != _print(rows):
            if ready[0]:
                log.warning("features of %r have other bytes than were written; they are made again", name)
            begin = 0
            for part in made:
                rows[begin : begin + len(part)] = part
                begin += len(part)
            ready[0] = _print(rows)
    rows.flags.writeable = False
    return rows


def _print(rows: FloatArray) -> int:
    return int(digests({"rows": rows})["rows"][:15], 16)  # 60 bits of 256


@contextmanager
def _arrays(
    version: str, encoding: Encoder, name: str, num_ready: int, num_rows: int
) -> Iterator[tuple[IdArray, FloatArray]]:
    """Numbers that say what was made, int64, and features: a file in the user's cache, which is locked.

    Args:
        version: of what the features are made of. Processes with the same one write the same bytes; "" for
            memory of this process, as where no file can be written.
    """
    parts: tuple[Any, ...] = ((num_ready,), np.int64), ((num_rows, encoding.width), np.float32)
    num_bytes, arena = sum(array_bytes(*part) for part in parts), None
    stands_on = f"{version} {encoding.hash} {name} {ort.__version__}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    path = cache / "hopline" / "encoded" / f"{hashlib.sha256(stands_on.encode()).hexdigest()[:32]}.rows"
    with ExitStack() as stack:
        if version and num_bytes and path.is_absolute():
            try:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                stack.enter_context(locked(path.with_suffix(".lock")))
                if path.exists() and path.stat().st_size != num_bytes:  # damaged
                    path.unlink()
                with path.open("ab+") as file:
                    # Pages of a sparse file would end the process when the disk is full.
                    os.posix_fallocate(file.fileno(), 0, num_bytes)
                    arena = Arena(num_bytes, file.fileno())
                path.touch()
                _remove_unused(path.parent)
            except OSError as error:
                log.warning("%s: features are not shared between processes: %s", path, error)
        arena = arena or Arena(num_bytes)
        ready: IdArray = arena.take(*parts[0])
        rows: FloatArray = arena.take(*parts[1])
        yield ready, rows


def _remove_unused(folder: Path) -> None:
    for each in folder.iterdir():
        with suppress(FileNotFoundError):  # another process may remove it as well
            if time.time() - each.stat().st_mtime > _KEPT_S:
                each.unlink()


@dataclass(slots=True)
class Preprocessed:
    """A graph with features, as a module reads them.

    Attributes:
        graph: without columns. encoders: node type or edge type key -> its preprocessing.
        schemas: the same -> its schema before, with the columns that are read.
        files: path inside the artifact -> content. notes: for the user.
    """

    graph: Graph
    encoders: dict[str, Encoder] = field(default_factory=dict)
    schemas: dict[str, NodeTypeSchema | EdgeTypeSchema] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def write(self, folder: Path, spec: ModelSpec) -> ModelSpec:
        """Write the files into an artifact; returns its model.json for a graph with columns."""
        if not self.encoders:
            return spec
        for file, content in self.files.items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(content)
        schema: Any = msgspec.json.decode(msgspec.json.encode(spec.graph_schema))
        oldest = ENCODER_FORMAT
        for name, each in self.schemas.items():
            is_node = isinstance(each, NodeTypeSchema)
            oldest = oldest if is_node else EDGE_ENCODER_FORMAT
            schema["node_types" if is_node else "edge_types"][name] = msgspec.to_builtins(each)
        return msgspec.structs.replace(
            spec, graph_schema=schema, encoders=self.encoders, format=max(oldest, spec.format)
        )


def preprocessed(graph: Graph, preprocess: Mapping[Any, Any], progress: Progress) -> Preprocessed:
    """Convert fitted transformers, and apply them to the columns of a graph.

    Args:
        preprocess: node type or edge type -> transformer, fitted on a DataFrame with columns of that type;
            None if the module reads none of them.

    Raises:
        PackagingError: a transformer cannot be converted, or its type has no such columns.
        ParityError: the converted form differs from the fitted object.
    """
    if not isinstance(preprocess, Mapping):
        raise PackagingError(
            f"preprocess: {{node type: fitted transformer}}; got {type(preprocess).__name__}"
        )
    given = {"__".join(key) if isinstance(key, tuple) else key: each for key, each in preprocess.items()}
    found, rows = Preprocessed(graph), dict[str, FloatArray]()
    with tempfile.TemporaryDirectory(prefix="hopline-") as place:
        folder = Path(place)
        (folder / "encoders").mkdir()
        for name, transformer in [each for each in given.items() if each[1] is not None]:
            stage = f"preprocessing of {name!r}"
            progress(stage, 0.0)
            try:
                rows |= _converted(found, name, transformer, folder)
            except (PackagingError, ImportError) as error:
                kind = ParityError if isinstance(error, ParityError) else PackagingError
                raise kind(f"{stage}: {error}") from None
            progress(stage, 1.0)
    bare = [name for name, part in graph.nodes.items() if part.columns and not part.features.shape[1]]
    bare += [key for key, part in graph.edges.items() if part.columns]
    for name in [name for name in bare if given and name not in given]:
        of, names = "edge" if name in graph.edges else "node", _schema(graph.schema, name).columns
        listed = ", ".join(column.name for column in names)
        raise PackagingError(
            f"preprocess: {of} type {name!r} has columns ({listed}) and no transformer: add one, or None"
        )
    if rows or bare or any(part.columns for part in graph.nodes.values()):
        found.graph = features_of(graph, rows, found.encoders)
    return found


def _converted(found: Preprocessed, name: str, transformer: Any, folder: Path) -> dict[str, FloatArray]:
    """The rows of a type, and of those that are its edges against their direction."""
    graph, is_edge = found.graph, name in found.graph.edges
    if name not in {**graph.nodes, **graph.edges}:
        known = ", ".join([*graph.nodes, *graph.schema.own_edge_types])
        raise PackagingError(f"the graph has no such node type or edge type; it has {known}")
    part, derived = _part(graph, name), _derived(graph.schema, name)
    schema = _schema(graph.schema, name)
    if part.columns is None or not len(part.columns.table):
        of = "Edge" if is_edge else "Node"
        raise PackagingError(
            f"the graph has no columns of it: {of}Table(columns=...), {of}File(columns=[...])"
        )
    if isinstance(schema, NodeTypeSchema) and schema.feature_dim:
        raise PackagingError(
            f"it has {schema.feature_dim} features besides its columns; keep them as columns"
        )
    types = {column.name: column.type for column in schema.columns}
    file = f"encoders/{quote(name, safe='')}.onnx"
    chosen = np.unique(np.linspace(0, len(part.columns.table) - 1, _COMPARED).astype(np.int64))
    package = TABULAR.require("tabular")
    made = package.convert(transformer, types, part.columns.values(chosen), folder, file)
    model = msgspec.to_builtins(made.spec)
    content = (folder / file).read_bytes()
    digest = hashlib.sha256(content + msgspec.json.encode(model)).hexdigest()
    encoder = found.encoders[name] = Encoder(digest, made.spec.output_dim, model, made.names)
    kept = tuple(one for one in schema.columns if one.name in made.reads)
    found.schemas |= {key: graph.schema.edge_types[key] for key in derived}
    found.schemas[name] = msgspec.structs.replace(schema, columns=kept)
    found.files[file] = content
    agreement = made.agreement
    found.notes.append(
        f"preprocessing of {name!r}: {len(kept)} columns become {encoder.width} "
        f"{'attributes' if is_edge else 'features'}; "
        f"{agreement.num_rows} rows of the graph and {agreement.num_edge_rows} edge rows differ from the "
        f"fitted object's by at most {max(agreement.max_abs_diff, agreement.max_abs_diff_edges):.2g}"
    )
    found.notes += [f"preprocessing of {name!r}: {note}" for note in made.notes if "refuses" not in note]
    rows = np.concatenate(list(encode_rows(package.encoder(folder, model, types), graph, name)))
    return {name: rows} | {key: next(_turned(rows, graph.edges[name])) for key in derived}
