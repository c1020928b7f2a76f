"""A batch run over edges: those of a table, or those of the graph.

The server's code answers requests of some edges each. Their logits are rows of a file, which survive a kill
as states do (see `journal.py`); the table is shaped from them.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np

from hopline.artifact import ModelSpec, read_spec, sha256_of
from hopline.engine.answer import Answerer
from hopline.engine.encoders import columns_read
from hopline.engine.inline_features import number_rows
from hopline.engine.model import Model, StateCachePlan
from hopline.engine.request_ids import not_found
from hopline.engine.tasks import default_outputs, outputs_of
from hopline.errors import BadRequest, BatchError, EdgeNotFound, HoplineError
from hopline.graph import Adjacency
from hopline.graph.cells import Missing, ids, numbers
from hopline.graph.edge_ids import EdgeIds
from hopline.graph.edge_times import rough_range, time_cut
from hopline.graph.files import open_table
from hopline.graph.list_columns import lists_of
from hopline.graph.stored_columns import StoredColumns
from hopline.graph.text_table import TextFormat
from hopline.graph.typed_columns import typed_columns
from hopline.jobs.batch.goal import BatchOptions, known_nodes
from hopline.jobs.batch.journal import Mark, RunIdentity, RunManifest, WorkFolder
from hopline.jobs.batch.report import Advance, BatchReport, silent
from hopline.jobs.batch.results import Columns, ResultWriter, columns_of, report_of, table_of
from hopline.jobs.batch.rows import with_all_neighbors
from hopline.jobs.batch.sink import ID_COLUMN, Column, Sink, TableSchema
from hopline.jobs.batch.spans import Span, count, merged, missing
from hopline.jobs.batch.states import RowFile, create, state_path
from hopline.live.snapshots import open_graph
from hopline.memory.arena import Arena
from hopline.process.cgroup import available_bytes, usable_cpus
from hopline.types import AnyArray, Excluded, FloatArray, IdArray, ScoredEdge, ScoreRequest

#: Edges of a request, which may need a graph for each of them.
_AT_ONCE = 256
#: Part of the free memory for the state caches of all threads.
_CACHE_SHARE = 0.25
#: In-neighbours of an end whose edge is left out: a request may not list more, a run may.
_MOST_NEIGHBORS = 2**40


@dataclass(frozen=True)
class EdgeChoice:
    """The edges that a run scores.

    Attributes:
        file: a table with columns `from`, `to` and those of an edge, or `id`; None: edges of the graph.
        begin, end: of edges of the graph, those with begin <= time < end; None has no limit.
        exclude: as a request's `exclude_seed_edges`; "" is as the model was packaged, and if it was with
            "none", it is "self" for edges of the graph.
    """

    file: Path | None = None
    begin: int | datetime | None = None
    end: int | datetime | None = None
    exclude: str = ""


@dataclass(frozen=True)
class _Edges:
    """Edges with what is read of them.

    Attributes:
        places: int64 [n] rows of the file, or places in the graph's list of the type.
        sources, targets: int64 [n] rows of the node types.
        rows: float32 [n, d_e]. time: int64 [n], or None.
        names: ids of these edges of the graph by `places`, or None.
    """

    places: IdArray
    sources: IdArray
    targets: IdArray
    rows: FloatArray
    time: IdArray | None = None
    names: EdgeIds | None = None


class EdgeRun:
    """One batch run over edges; may be killed and started again as `BatchRun`.

    Raises:
        BadRequest: the model scores no edges, a wrong option, a table that cannot be read.
        NodeNotFound: ends that are not in the graph.
        SchemaMismatch, ArtifactError, GraphError: the model or graph cannot be used.
        BatchError, RunMismatch: the run cannot start.
    """

    def __init__(
        self, model_folder: Path, graph_folder: Path, work: Path, edges: EdgeChoice,
        options: BatchOptions | None = None, *, advance: Advance = silent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._options, self._folder = options or BatchOptions(), model_folder
        self._advance, self._clock = advance, clock
        self._began = self._synced = clock()
        spec = read_spec(model_folder)
        self._check(spec, edges)
        self._spec = with_all_neighbors(spec) if self._options.exact else spec
        self._graph = open_graph(graph_folder, fresh=not work.exists())
        self._own, self._threads = threading.local(), self._options.threads or usable_cpus()
        model = self._answerer().model
        self._how: Any = edges.exclude or spec.head.exclude_seed_edges or ("none" if edges.file else "self")
        self._edges = _of_graph(model, edges) if edges.file is None else _of_file(model, edges.file)
        self._ids = [model.graph.nodes[name].ids for name in _ends(spec)]
        identity = RunIdentity(
            spec.name, spec.version, sha256_of(model_folder / "model.json"), self._graph.version,
            self._options.exact, self._digest(),
        )  # fmt: skip
        manifest = RunManifest(identity, str((self._graph.path or graph_folder).resolve()))
        self._work = WorkFolder(work, manifest, restart=self._options.restart)
        self._key = 0, spec.head.edge_type or "pairs"
        self._pending: list[Span] = []

    def run(self, open_sink: Callable[[], Sink]) -> BatchReport:
        """Score the remaining edges, and write the table; as `BatchRun.run`."""
        num_rows, path = len(self._edges.places), state_path(self._work.folder, *self._key)
        done = self._work.done(*self._key)
        if not done:
            create(path, num_rows, self._spec.head.output_dim)
        elif not path.is_file():
            raise BatchError(
                f"{path} is missing, although {self._work.folder} marks it as done; pass --restart"
            )
        computed = counted = count(done)
        file, writer = RowFile(path, writable=True), None
        try:
            with ThreadPoolExecutor(self._threads, thread_name_prefix="batch-edges") as pool:
                spans = [*missing(done, num_rows, _AT_ONCE)]
                try:
                    for span, logits in zip(spans, pool.map(self._logits, spans), strict=True):
                        file.write_range(span[0], logits)
                        self._pending.append(span)
                        counted += span[1] - span[0]
                        self._advance("edges", counted, num_rows)
                        if self._clock() - self._synced >= self._options.checkpoint_s:
                            self._checkpoint(file)
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    with suppress(BatchError):  # what is done is not lost
                        self._checkpoint(file)
                    raise
            self._checkpoint(file)
            writer = ResultWriter(
                open_sink(), self._schema(), self._folder, self._rows_spec, file, self._named
            )
            writer.finish(self._threads, self._advance)
            self._work.remove()
        except BaseException:
            if writer is not None:
                writer.abort()
            raise
        finally:
            self._work.close()
        seconds, own = self._clock() - self._began, {"outputs": self._outputs, "threads": self._threads}
        new = counted - computed
        return report_of(self._work, num_rows, seconds, tables=self._key[1:], recomputed=new, **own)

    def _check(self, spec: ModelSpec, edges: EdgeChoice) -> None:
        named, options = f"{spec.name}/{spec.version}", self._options
        if spec.head.kind != "link" or not (spec.head.edge_type or edges.file):
            what = "nodes" if spec.head.kind != "link" else "pairs: name those to score, in a file"
            raise BadRequest(f"--edges: {named} scores {what}")
        for name in ("nodes", "since", "keep", "memory_bytes"):
            if getattr(options, name):
                raise BadRequest(
                    f"--{name.removesuffix('_bytes')} is for a run over nodes, and not with --edges"
                )
        if edges.exclude not in ("", *get_args(Excluded)):
            raise BadRequest(
                f"--exclude-seed-edges is {', '.join(get_args(Excluded))}; got {edges.exclude!r}"
            )
        if edges.file and not (edges.begin is edges.end is None):
            raise BadRequest("--begin and --end choose edges of the graph: --edges all")
        offers = [name for name in outputs_of(spec) if name != "embedding"]
        self._outputs = options.outputs or default_outputs(spec)
        for name in self._outputs:
            if name not in offers:
                raise BadRequest(
                    f"model {named} has no output {name!r} of edges; it has {', '.join(offers)}"
                )
        #: As a model of nodes whose final states are the logits.
        head = msgspec.structs.replace(spec.head, kind="node", file=None, edge_type="", embedding=None)
        self._rows_spec = msgspec.structs.replace(spec, head=head, levels=())

    def _answerer(self) -> Answerer:
        """The model of the calling thread, with a separate state cache."""
        if not hasattr(self._own, "answerer"):
            plan = StateCachePlan(
                self._spec, self._graph, int(_CACHE_SHARE * available_bytes() / self._threads)
            )
            caches = plan.build(Arena(plan.num_bytes))
            model = Model(self._folder, self._spec, self._graph, caches)
            self._own.answerer = Answerer(model, ("logits",), _MOST_NEIGHBORS)
        answerer: Answerer = self._own.answerer
        return answerer

    def _logits(self, span: Span) -> FloatArray:
        """Logits of edges [begin, end), float32 [n, c]; on any thread."""
        answerer, part = self._answerer(), slice(*span)
        answerer.model.encoders = {}  # rows are encoded already
        sides = self._edges.sources[part], self._edges.targets[part]
        ends: list[Any] = [list(own.external(side)) for own, side in zip(self._ids, sides, strict=True)]
        if self._spec.head.edge_type:
            each: Any = zip(*ends, self._edges.rows[part], strict=True)
            named: dict[str, Any] = {"edges": tuple(ScoredEdge(a, b, attr=row) for a, b, row in each)}
        else:
            named = {"pairs": tuple(ends)}
        (outcome,) = answerer.answer([ScoreRequest(self._spec.name, exclude_seed_edges=self._how, **named)])
        if isinstance(outcome, HoplineError):
            raise outcome
        logits: FloatArray = outcome.outputs["logits"]
        return logits

    def _checkpoint(self, file: RowFile) -> None:
        file.sync()
        self._work.mark([Mark(*self._key, *span) for span in merged(self._pending)])
        self._pending, self._synced = [], self._clock()

    def _digest(self) -> str:
        """Hash of all that is scored."""
        edges, digest = self._edges, hashlib.blake2b(self._how.encode(), digest_size=16)
        for array in (edges.places, edges.sources, edges.targets, edges.rows):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def _named(self, rows: IdArray) -> Columns:
        """The columns of edges before their scores."""
        edges = self._edges
        sides = zip(("from", "to"), self._ids, (edges.sources, edges.targets), strict=True)
        found: Columns = {name: own.external(side[rows]) for name, own, side in sides}
        if edges.time is not None:
            found["time"] = edges.time[rows]
        places = edges.places[rows]
        return {ID_COLUMN: places if edges.names is None else edges.names.external(places)} | found

    def _schema(self) -> TableSchema:
        kinds = ("string" if own.kind == "string" else "int64" for own in self._ids)
        columns = [Column(name, kind, 0) for name, kind in zip(("from", "to"), kinds, strict=True)]
        columns += [] if self._edges.time is None else [Column("time", "int64", 0)]
        columns += columns_of(self._rows_spec, self._outputs, self._spec.head.output_dim)
        return table_of(
            self._work.manifest.identity,
            self._outputs,
            "",
            node_type=self._key[1],
            num_rows=len(self._edges.places),
            id_kind="int" if self._edges.names is None else "string",
            columns=tuple(columns),
            classes=self._spec.classes,
        )


def _ends(spec: ModelSpec) -> tuple[str, str]:
    return spec.head.node_type, spec.head.dst_node_type or spec.head.node_type


def _of_graph(model: Model, edges: EdgeChoice) -> _Edges:
    """Edges of the graph, by destination."""
    key, graph = model.spec.head.edge_type, model.graph
    adjacency = graph.edges[key]
    places = np.arange(adjacency.num_edges)
    for flag, moment in (("--begin", edges.begin), ("--end", edges.end)):
        if moment is None:
            continue
        if adjacency.time is None:
            raise BadRequest(f"{flag}: edges of {key!r} have no times")
        try:
            limit = time_cut(moment, graph.schema.time_unit, rough_range(graph, [key]))
        except BadRequest as error:
            raise BadRequest(str(error).replace("as_of", flag, 1)) from None
        is_later = adjacency.time[places] >= limit
        places = places[is_later if flag == "--begin" else ~is_later]
    return _at(model, places)


def _at(model: Model, places: IdArray) -> _Edges:
    """Edges of the graph by their places."""
    graph, adjacency = model.graph, model.graph.edges[model.spec.head.edge_type]
    owners = np.arange(graph.nodes[adjacency.dst].num_nodes)
    targets = np.repeat(owners, adjacency.degree(owners))[places]
    sources = np.asarray(adjacency.indices[places], np.int64)
    attr: Any = adjacency.attr
    own_time = None if adjacency.time is None else np.asarray(adjacency.time[places], np.int64)
    names = adjacency.ids if isinstance(adjacency, Adjacency) else None
    return _Edges(places, sources, targets, np.asarray(attr[places], np.float32), own_time, names)


def _of_file(model: Model, path: Path) -> _Edges:
    """Edges of a table, in its order."""
    spec, graph = model.spec, model.graph
    table = open_table(path, TextFormat(), ("from", "to"), lambda step, share: None)
    if spec.head.edge_type and table.find("id") and not table.find("from"):
        table.load(["id"])
        given_ids: Any = ids(table, "id", Missing())
        wanted = list(given_ids)
        places, _ = graph.edges[spec.head.edge_type].located(wanted)
        if (places < 0).any():
            raise not_found(graph.version, wanted, places, EdgeNotFound)
        return _at(model, places)
    if absent := [name for name in ("from", "to") if table.find(name) is None]:
        raise BadRequest(f"--edges {path}: no column {absent[0]!r}; the file has {', '.join(table.names)}")
    key, others = spec.head.edge_type, [name for name in table.names if name not in ("from", "to")]
    encoder = model.encoders.get(key)
    types = {} if encoder is None else columns_read(spec, key)
    kinds = types | lists_of(types)
    if encoder is not None:
        others = [name for name in others if name in kinds]
    elif key and (named := graph.schema.edge_types[key].attr_names):
        others = [*named]
    elif not key:
        others = []
    if absent := [name for name in others if table.find(name) is None]:
        raise BadRequest(f"--edges {path}: no column {absent[0]!r}; the file has {', '.join(table.names)}")
    table.load(["from", "to", *others])
    sides = []
    for column, node_type in zip(("from", "to"), _ends(spec), strict=True):
        read: Any = ids(table, column, Missing())
        given = read.tolist() if isinstance(read, np.ndarray) else list(read)
        if graph.nodes[node_type].ids.kind == "string":
            given = [str(each) for each in given]
        sides.append(known_nodes(graph, node_type, given, f"--edges {path}, column {column!r}: "))
    num_rows = len(sides[0])
    rows: FloatArray = np.empty((num_rows, 0), np.float32)
    if encoder is not None:
        stored = StoredColumns.of(typed_columns(table, {name: kinds[name] for name in others}, Missing()))
        values: dict[str, AnyArray] = stored.values(slice(0, num_rows))
        if absent := [name for name in types if name not in values]:
            raise BadRequest(f"--edges {path}: no column {absent[0]!r}, which the preprocessing reads")
        try:
            rows = encoder.encode(values, num_rows)
        except BadRequest as error:
            raise BadRequest(f"--edges {path}: {error}") from None
    elif key:
        schema = graph.schema.edge_types[key]
        cells = [numbers(table, name, Missing(), named=True) for name in others]
        given = np.column_stack(cells) if cells else np.empty((num_rows, 0))
        has = f"edge type {key!r} has {schema.attr_dim} edge attributes"
        shape = schema.attr_dim, schema.attr_names, schema.rounded, ()
        rows = number_rows(given.tolist(), lambda at: f"--edges {path}, row {at}", has, shape)
    return _Edges(np.arange(num_rows), sides[0], sides[1], rows)
