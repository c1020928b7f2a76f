"""Preprocessing of a model: columns of nodes become features, once for a graph and in each request.

The engine reads float32 features only. The features that a model's preprocessing makes of a graph's columns
are computed when the model is loaded. The workers of a host, and versions with equal preprocessing, map the
same file. Inline nodes are encoded in the request.

The package for tabular models (`hopline[tabular]`) converts and runs preprocessing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import quote

import msgspec
import numpy as np

from hopline.artifact import ENCODER_FORMAT, Encoder, ModelSpec
from hopline.doors import Door
from hopline.engine.embeddings import AnyGraph
from hopline.errors import (
    ArtifactError,
    BadRequest,
    PackagingError,
    ParityError,
    SchemaMismatch,
)
from hopline.files import locked
from hopline.graph import Graph, GraphSchema, NodeTypeSchema
from hopline.graph.live.rows import find_late, set_ready
from hopline.graph.live.view import LiveNodes, LiveRows, LiveView
from hopline.graph.node_columns import values_of
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
            columns: of a graph, in the form of `NodeColumns.values`.

        Raises: BadRequest: a value that the preprocessing does not accept; names the column, row and value.
        """

    def rows(self, given: Sequence[Mapping[str, Any] | None], places: Sequence[str] = ()) -> FloatArray:
        """Features of rows of a request, float32 [n, width].

        Args:
            places: of the rows in the request, for messages.

        Raises: BadRequest: as `encode`, with the place; a column is missing.
        """

    def read(
        self, given: Sequence[Mapping[str, Any] | None], places: Sequence[str]
    ) -> dict[str, list[Any]]:
        """Rows of a request in the form of `NodeColumns.values`, by column."""


def encoder_of(folder: Path, spec: ModelSpec, node_type: str) -> RowEncoder:
    """The preprocessing of a node type that has one.

    Raises: ArtifactError: its package is not installed, or the file cannot be loaded.
    """
    types: Any = spec.graph_schema["node_types"]
    columns = {column["name"]: column["type"] for column in types[node_type]["columns"]}
    try:
        found: RowEncoder = TABULAR.require("tabular").encoder(
            folder, spec.encoders[node_type].model, columns
        )
    except ImportError as error:
        raise ArtifactError(f"{spec.name}/{spec.version} has preprocessing: {error}") from None
    return found


def with_features(schema: GraphSchema, encoders: Mapping[str, Encoder]) -> GraphSchema:
    """The schema of a graph whose columns were encoded."""
    types = {name: msgspec.structs.replace(node, columns=()) for name, node in schema.node_types.items()}
    for name, encoder in encoders.items():
        types[name] = msgspec.structs.replace(
            types[name], feature_dim=encoder.width, feature_names=encoder.names
        )
    return GraphSchema(types, schema.edge_types)


def features_of(graph: Graph, rows: Mapping[str, FloatArray], encoders: Mapping[str, Encoder]) -> Graph:
    """A graph with encoded features, and no columns in its schema; edges, ids and columns are shared."""
    nodes = {key: replace(part, features=rows.get(key, part.features)) for key, part in graph.nodes.items()}
    schema = with_features(graph.schema, encoders)
    return Graph(schema, nodes, graph.edges, left_out=graph.left_out)


def encoded(folder: Path, spec: ModelSpec, graph: AnyGraph) -> AnyGraph:
    """The graph with the features that a model's preprocessing makes of its columns.

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
            slots, nonce = len(graph.nodes[name].features.array), graph.memory.plan.nonce
            with _arrays(nonce, encoding, name, slots, slots) as arrays[name]:
                pass

        def adapt(view: LiveView) -> None:
            for name, encoder in loaded.items():
                view.nodes[name] = EncodedNodes(name, view.nodes[name], encoder, arrays[name])
            view.schema = with_features(view.schema, spec.encoders)

        adapt(graph)
        graph.adapt = adapt
        with graph:
            for name in loaded:
                nodes = graph.nodes[name]
                assert isinstance(nodes, EncodedNodes)
                nodes.encode_all()
        return graph
    if any(graph.nodes[name].columns is None for name in spec.encoders):
        raise ArtifactError(
            f"{spec.name}/{spec.version} has preprocessing of {', '.join(spec.encoders)} (preprocess=), "
            "and a graph store does not hold columns yet; serve a snapshot"
        )
    found = {name: _shared(folder, spec, name, graph) for name in spec.encoders}
    served = features_of(graph, found, spec.encoders)
    vars(served).update(version=graph.version, path=graph.path)  # answers name the graph as it is stored
    return cast(AnyGraph, served)


class EncodedNodes(LiveNodes):
    """Nodes of a live graph whose features are made of their columns, at the latest when they are read.

    All processes that share the graph's memory write the same features, and only of the version that they
    pinned: no slot that a version has is reused while a process may write it.

    Args:
        name: of the node type.
        arrays: `ready` and the features.
    """

    def __init__(
        self, name: str, nodes: LiveNodes, encoder: RowEncoder, arrays: tuple[IdArray, FloatArray]
    ) -> None:
        vars(self).update(vars(nodes))
        self._name = name
        self._encoder = encoder
        self._ready, self._rows = arrays
        self.ready = self._ready
        self.features = _EncodedRows(self, self._rows)

    def slots(self, ids: IdArray) -> IdArray:
        """As `LiveNodes.slots`, after making the rows that are missing.

        Raises: SchemaMismatch: the preprocessing does not accept a value; names the node and the column.
        """
        found, refused = self.read(ids)
        if refused:
            raise self._refusal(ids[found == refused[-1][0]], refused[-1][1])
        return found

    def read(self, ids: IdArray) -> tuple[IdArray, list[tuple[int, str]]]:
        """The slots of nodes, and those of them that are not accepted, with the reason."""
        found, refused = super().slots(ids), list[tuple[int, str]]()
        self._encode(found, refused)
        return found, refused

    def encode_all(self) -> None:
        """Make the rows of the pinned version. Rows that are not accepted are refused when they are read.

        Raises: SchemaMismatch: many rows are not accepted.
        """
        refused = list[tuple[int, str]]()
        for begin in range(0, self.num_nodes, _CHUNK):
            ids = np.arange(begin, min(begin + _CHUNK, self.num_nodes))
            found = super().slots(ids)
            self._encode(found, refused)
            if len(refused) > _MOST_REFUSED:
                raise self._refusal(ids[found == refused[-1][0]], refused[-1][1])
        if refused:
            log.warning("%d nodes of type %r: %s", len(refused), self._name, refused[0][1])

    def _refusal(self, ids: IdArray, reason: str) -> SchemaMismatch:
        (node,) = np.asarray(self.ids.external(ids[:1]), object)
        why = f"node {node!r} of type {self._name!r}: {reason}; set its columns (set_features)"
        return SchemaMismatch(why, [why])

    def _encode(self, slots: IdArray, refused: list[tuple[int, str]]) -> None:
        """Make missing rows; adds slots that are not accepted, with the reason, to `refused`."""
        since, late = self._own.since, np.empty(len(slots), np.int64)
        late = np.unique(late[: find_late(slots, since, self._ready, late)])
        if not len(late):
            return
        values = values_of(self.column_schemas, *self.cells(late))
        try:
            self._rows[late] = self._encoder.encode(values, len(late))
            set_ready(late, since, self._ready)
        except BadRequest as error:
            if len(late) == 1:
                refused.append((int(late[0]), str(error).replace(", row 0:", ":").removeprefix("row 0: ")))
            for part in np.array_split(late, 2) if len(late) > 1 else ():
                if len(refused) <= _MOST_REFUSED:
                    self._encode(part, refused)


class _EncodedRows(LiveRows):
    """As `LiveRows`; a row that the preprocessing does not accept is NaN."""

    _nodes: EncodedNodes

    def __getitem__(self, ids: Any) -> FloatArray:
        slots, refused = self._nodes.read(np.atleast_1d(np.asarray(ids, np.int64)))
        found: FloatArray = self.array[slots]
        found[np.isin(slots, [slot for slot, _ in refused])] = np.nan
        return found[0] if np.ndim(ids) == 0 else found


def encode_nodes(encoder: RowEncoder, graph: Graph, node_type: str) -> Iterator[FloatArray]:
    """The features of all nodes of a type, some rows at a time.

    Raises: SchemaMismatch: a value is not accepted; names the column, row and value.
    """
    columns, count = graph.nodes[node_type].columns, graph.nodes[node_type].num_nodes
    assert columns is not None
    for begin in range(0, count, _CHUNK):
        end = min(begin + _CHUNK, count)
        try:
            yield encoder.encode(columns.values(slice(begin, end)), end - begin)
        except BadRequest as error:
            where = f"nodes of type {node_type!r}" + (f", counted from row {begin}" if begin else "")
            raise SchemaMismatch(f"{where}: {error}", [str(error)]) from None


def _shared(folder: Path, spec: ModelSpec, node_type: str, graph: Graph) -> FloatArray:
    """The features of a node type, made by the first process that needs them."""
    encoder = encoder_of(folder, spec, node_type)
    version = "" if graph.path is None else graph.version
    count = graph.nodes[node_type].num_nodes
    with _arrays(version, spec.encoders[node_type], node_type, 1, count) as (ready, rows):
        if not ready[0]:
            begin = 0
            for part in encode_nodes(encoder, graph, node_type):
                rows[begin : begin + len(part)] = part
                begin += len(part)
            ready[0] = 1
    rows.flags.writeable = False
    return rows


@contextmanager
def _arrays(
    version: str, encoding: Encoder, node_type: str, num_ready: int, num_rows: int
) -> Iterator[tuple[IdArray, FloatArray]]:
    """Numbers that say what was made, int64, and features: a file in the user's cache, which is locked.

    Args:
        version: of what the features are made of. Processes with the same one write the same bytes; "" for
            memory of this process, as where no file can be written.
    """
    parts: tuple[Any, ...] = ((num_ready,), np.int64), ((num_rows, encoding.width), np.float32)
    num_bytes, arena = sum(array_bytes(*part) for part in parts), None
    stands_on = f"{version} {encoding.hash} {node_type} {ort.__version__}"
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
        graph: without columns. encoders: node type -> its preprocessing.
        node_types: node type -> its schema before, with the columns that are read.
        files: path inside the artifact -> content. notes: for the user.
    """

    graph: Graph
    encoders: dict[str, Encoder] = field(default_factory=dict)
    node_types: dict[str, NodeTypeSchema] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def write(self, folder: Path, spec: ModelSpec) -> ModelSpec:
        """Write the files into an artifact; returns its model.json for a graph with columns."""
        if not self.encoders:
            return spec
        for file, content in self.files.items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(content)
        types: Any = spec.graph_schema["node_types"]
        schema = {**spec.graph_schema, "node_types": types | msgspec.to_builtins(self.node_types)}
        return msgspec.structs.replace(
            spec, graph_schema=schema, encoders=self.encoders, format=ENCODER_FORMAT
        )


def preprocessed(graph: Graph, preprocess: Mapping[str, Any], progress: Progress) -> Preprocessed:
    """Convert fitted transformers, and apply them to the columns of a graph.

    Args:
        preprocess: node type -> transformer, fitted on a DataFrame with columns of that type; None if the
            module reads no features of it.

    Raises:
        PackagingError: a transformer cannot be converted, or its node type has no such columns.
        ParityError: the converted form differs from the fitted object.
    """
    if not isinstance(preprocess, Mapping):
        raise PackagingError(
            f"preprocess: {{node type: fitted transformer}}; got {type(preprocess).__name__}"
        )
    found, rows = Preprocessed(graph), dict[str, FloatArray]()
    with tempfile.TemporaryDirectory(prefix="hopline-") as place:
        folder = Path(place)
        (folder / "encoders").mkdir()
        for name, transformer in [each for each in preprocess.items() if each[1] is not None]:
            stage = f"preprocessing of {name!r}"
            progress(stage, 0.0)
            try:
                rows[name] = _converted(found, name, transformer, folder)
            except (PackagingError, ImportError) as error:
                kind = ParityError if isinstance(error, ParityError) else PackagingError
                raise kind(f"{stage}: {error}") from None
            progress(stage, 1.0)
    bare = [name for name, part in graph.nodes.items() if part.columns and not part.features.shape[1]]
    for name in [name for name in bare if preprocess and name not in preprocess]:
        names = ", ".join(column.name for column in graph.schema.node_types[name].columns)
        raise PackagingError(
            f"preprocess: node type {name!r} has columns ({names}) and no transformer: add one, or None"
        )
    if graph.nodes and (rows or any(part.columns for part in graph.nodes.values())):
        found.graph = features_of(graph, rows, found.encoders)
    return found


def _converted(found: Preprocessed, name: str, transformer: Any, folder: Path) -> FloatArray:
    graph = found.graph
    if name not in graph.nodes:
        raise PackagingError(f"the graph has no such node type; it has {', '.join(graph.nodes)}")
    part, schema = graph.nodes[name], graph.schema.node_types[name]
    if part.columns is None or not part.num_nodes:
        raise PackagingError(
            "the graph has no columns of it: NodeTable(columns=...), NodeFile(columns=[...])"
        )
    if schema.feature_dim:
        raise PackagingError(
            f"it has {schema.feature_dim} features besides its columns; keep them as columns"
        )
    types = {column.name: column.type for column in schema.columns}
    file = f"encoders/{quote(name, safe='')}.onnx"
    chosen = np.unique(np.linspace(0, part.num_nodes - 1, _COMPARED).astype(np.int64))
    package = TABULAR.require("tabular")
    made = package.convert(transformer, types, part.columns.values(chosen), folder, file)
    model = msgspec.to_builtins(made.spec)
    content = (folder / file).read_bytes()
    digest = hashlib.sha256(content + msgspec.json.encode(model)).hexdigest()
    encoder = found.encoders[name] = Encoder(digest, made.spec.output_dim, model, made.names)
    kept = tuple(one for one in schema.columns if one.name in {each.name for each in made.spec.columns})
    found.node_types[name] = msgspec.structs.replace(schema, columns=kept)
    found.files[file] = content
    agreement = made.agreement
    found.notes.append(
        f"preprocessing of {name!r}: {len(kept)} columns become {encoder.width} features; "
        f"{agreement.num_rows} rows of the graph and {agreement.num_edge_rows} edge rows differ from the "
        f"fitted object's by at most {max(agreement.max_abs_diff, agreement.max_abs_diff_edges):.2g}"
    )
    found.notes += [f"preprocessing of {name!r}: {note}" for note in made.notes if "refuses" not in note]
    return np.concatenate(list(encode_nodes(package.encoder(folder, model, types), graph, name)))
