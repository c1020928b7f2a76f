"""A batch run from start to end: levels into files, files into a sink.

`BatchRun(...).run()` may be killed at any moment and started again with the same arguments. Work that is
durably done (see `journal.py`) is not repeated, and the tables are the same bytes.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hopline.artifact import ModelSpec, read_spec
from hopline.engine.schema import fitted
from hopline.errors import BatchError
from hopline.files import publish_file
from hopline.graph import Graph
from hopline.graph.narrow import name_of
from hopline.graph.schema import quoted
from hopline.jobs.batch import needed_rows as needs
from hopline.jobs.batch import results
from hopline.jobs.batch.goal import BatchOptions, Goal
from hopline.jobs.batch.journal import Mark, RunManifest, WorkFolder
from hopline.jobs.batch.local import LocalEngine
from hopline.jobs.batch.report import Advance, BatchReport, LevelReport, silent
from hopline.jobs.batch.results import Columns, ResultWriter, columns_of, report_of, table_of
from hopline.jobs.batch.rows import below_of
from hopline.jobs.batch.sink import ID_COLUMN, Sink, TableSchema, WholeSink
from hopline.jobs.batch.spans import Span, count, leading, merged, missing
from hopline.jobs.batch.states import MemoryRows, RowFile, create, disk_errors, rows_of, state_path
from hopline.jobs.batch.work import Engine, LevelWork, Reads, Shaper, Worker, pace
from hopline.live.snapshots import open_graph
from hopline.process.cgroup import available_bytes
from hopline.runtimes.processor import warn_of_overflow

_ROWS = 1 << 16


def feature_file(graph: Graph, node_type: str, work: Path) -> Path:
    """The `.npy` file of a node type's features: the graph's own, or, if they are narrower or the model has
    learned columns, a copy in the run's work folder, created once.

    Raises:
        BatchError: the graph has no folder, or the disk is full.
    """
    if graph.path is None:
        raise BatchError("a batch run needs a saved graph; save it first")
    features = graph.nodes[node_type].features
    own = graph.path / "nodes" / quoted(node_type) / "features.npy"
    if name_of(features) == "float32" and rows_of(own)[1] == features.shape[1]:
        return own
    path = work / "states" / f"raw.{quoted(node_type)}.npy"
    if path.is_file():
        return path
    draft = path.with_suffix(".tmp")
    create(draft, *features.shape)
    file = RowFile(draft, writable=True)
    for a in range(0, features.shape[0], _ROWS):
        rows = np.arange(a, min(a + _ROWS, features.shape[0]))
        file.write(rows, np.asarray(features[a : a + _ROWS], np.float32))
    file.close()
    with disk_errors(path):
        publish_file(draft, path, durable=True)
    return path


__all__ = ["BatchOptions", "BatchRun"]

#: States stay in memory if they need less than this part of the free memory.
_KEPT_SHARE = 0.25


class BatchRun:
    """One batch run: computes the states of a model on a graph and writes its tables.

    Raises:
        BadRequest: an output that the model does not have.
        NodeNotFound: ids that are not in the graph.
        SchemaMismatch, ArtifactError, GraphError: the model or graph cannot be used.
        BatchError, RunMismatch: the run cannot start.
    """

    def __init__(
        self,
        model_folder: Path,
        graph_folder: Path,
        work: Path,
        options: BatchOptions | None = None,
        *,
        engine: Callable[[Graph, ModelSpec, int], Engine] | None = None,
        advance: Advance = silent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options or BatchOptions()
        self._folder = model_folder
        self._advance = advance
        self._clock = clock
        self._began = self._synced = clock()
        spec = read_spec(model_folder)
        warn_of_overflow(spec)
        # An interrupted run resumes with the snapshot that it began with, if that is still the newest.
        graph = open_graph(graph_folder, fresh=not work.exists())
        self._copy = None if graph.path is not None else work.with_name(f"{work.name}.graph")
        if self._copy is not None:  # a version of a live graph that no snapshot has
            name, graph = graph.version, graph.save(self._copy, overwrite=True)
            graph.__dict__["version"] = name
        self._graph = fitted(model_folder, spec, graph)
        usual = tuple(name for name in self._options.usual if name in results.available_outputs(spec))
        self._outputs = results.chosen_outputs(spec, self._options.outputs or usual)
        self._spec = spec = results.with_heads(spec, self._outputs)
        self._goal = goal = Goal(model_folder, spec, self._graph, self._options)
        self._types, self._needed = goal.types, goal.needed
        self._engine = (engine or LocalEngine)(self._graph, spec, self._options.threads)
        try:
            assert self._graph.path is not None
            manifest = RunManifest(goal.identity, str(self._graph.path.resolve()))
            self._work = WorkFolder(work, manifest, restart=self._options.restart)
        except BaseException:
            self._engine.close()
            raise
        self._pending: dict[tuple[int, str], list[Span]] = {}
        self._reports: list[LevelReport] = []
        #: Writer of the table that is written while the last level is computed.
        self._writer: ResultWriter | None = None
        self._open_sink: Callable[[], Sink]

    def run(self, open_sink: Callable[[], Sink]) -> BatchReport:
        """Compute the remaining rows, and write the tables.

        Args:
            open_sink: creates a sink for each table.

        Raises:
            BatchError: the disk is full, or another failure that a restart may fix.
            SinkError: writing the results to the sink failed; the states are kept.
        """
        self._open_sink = open_sink
        try:
            for level in range(self._first_level(), len(self._needed)):
                for node_type in self._needed[level]:
                    self._compute(level, node_type)
                self._end_level(level)
            if self._options.keep:
                self._finish_states()
            report = self._report(self._write())
            if self._options.keep:
                self._work.close()
            else:
                self._work.remove()
                if self._copy is not None:
                    shutil.rmtree(self._copy, ignore_errors=True)
            return report
        except BaseException:
            if self._writer is not None:
                self._writer.abort()
            raise
        finally:
            self._engine.close()
            self._work.close()

    def _first_level(self) -> int:
        """The first level to compute: a level whose states are complete does not need the levels below."""
        for level in range(len(self._needed) - 1, 0, -1):
            types = self._needed[level]
            if types and all(self._work.is_marked(level, name, "complete") for name in types):
                return level + 1
        return 0

    # Levels.

    def _compute(self, level: int, node_type: str) -> None:
        began = self._clock()
        work, copied = self._prepare(level, node_type)
        key = (level, node_type)
        done = self._work.done(*key)
        label = f"level {level}" if len(self._needed[level]) == 1 else f"level {level} of {node_type}"
        counted = [count(done), 0]
        before = counted[0]
        self._advance(label, before, work.num_rows)
        is_table = level == len(self._needed) - 1 and len(self._types) == 1 and work.rows is None
        if is_table and not len(self._graph.nodes[node_type].ids.removed):
            self._writer = self._open_table(node_type)
            self._writer.feed(leading(done))

        def span_done(
            span: Span, num_edges: int, columns: Columns | None = None, saved: bool = True
        ) -> None:
            counted[0] += span[1] - span[0]
            counted[1] += num_edges
            if saved:
                self._pending.setdefault(key, []).append(span)
            self._advance(label, counted[0], work.num_rows)
            if self._clock() - self._synced >= self._options.checkpoint_s:
                self._checkpoint()
            if self._writer is None:
                return
            if columns is not None:
                self._writer.put(columns)
            else:
                self._writer.feed(leading([*done, *self._pending.get(key, []), *self._work.done(*key)]))

        spans = missing(done, work.num_rows, work.span_rows)
        engine, writer = self._engine, self._writer
        try:
            if isinstance(engine, LocalEngine) and writer is not None and not (done or writer.at):
                engine.run_shaped(work, spans, self._shaper(writer), span_done)
            else:
                engine.run(work, spans, span_done)
        except BaseException:
            self._save_what_is_done()
            raise
        row_bytes = sum(rows_of(path)[1] for path in work.below.values()) * 4
        self._reports.append(
            LevelReport(
                level=level,
                node_type=node_type,
                rows=work.num_rows,
                computed=counted[0] - before,
                copied=copied,
                edges=counted[1],
                gathered_bytes=(counted[1] + counted[0] - before) * row_bytes,
                seconds=self._clock() - began,
                compact_edges=work.compact_edges,
            )
        )

    def _shaper(self, writer: ResultWriter) -> Shaper:
        """Shape final states into columns where they are computed; they are also written to their file
        once a kill would cost more than `checkpoint_s`."""
        begin_saving = self._began + self._options.checkpoint_s

        def saves() -> bool:
            return self._options.keep or self._clock() >= begin_saving

        return Shaper(writer.shape, saves)

    def _prepare(self, level: int, node_type: str) -> tuple[LevelWork, int]:
        """The work of a level, after creating its file, and the rows copied from the previous run."""
        num_nodes = self._graph.nodes[node_type].num_nodes
        dim = self._dim(level, node_type)
        out = state_path(self._work.folder, level, node_type)
        rows = self._goal.rows.get((level, node_type))
        copied = 0
        if not self._work.done(level, node_type) and not self._work.is_marked(level, node_type, "kept"):
            previous, changes = self._goal.previous, self._goal.changes
            if previous is not None and changes is not None and rows is not None:
                self._advance(f"copying level {level}", 0, num_nodes)
                copied = previous.copy(out, level, node_type, changes.matched[node_type], rows)
                self._work.mark([Mark(level, node_type, kept=True)])
            else:
                create(out, num_nodes, dim, sparse=rows is not None)
        elif not out.is_file():
            raise BatchError(
                f"{out} is missing, although {self._work.folder} marks it as done; pass --restart"
            )
        elif rows is not None and self._goal.changes is not None:
            copied = num_nodes - rows.shape[0]
        listed = None
        if rows is not None:
            listed = self._work.folder / "rows" / f"{out.name}"
            listed.parent.mkdir(exist_ok=True)
            np.save(listed, rows)
        below, raw = self._below(level, node_type)
        is_top = level == len(self._needed) - 1 and len(self._types) == 1
        begun = bool(self._work.done(level, node_type))
        if rows is None and not is_top and not begun and not self._options.memory_bytes:
            self._keep(out, num_nodes, dim)
        threads = self._engine.threads
        work = LevelWork(
            model_folder=self._folder,
            graph_folder=Path(self._work.manifest.graph_path),
            level=level,
            node_type=node_type,
            exact=self._options.exact,
            below=below,
            raw=raw,
            out=out,
            num_nodes=num_nodes,
            dim=dim,
            num_rows=num_nodes if rows is None else rows.shape[0],
            rows=listed,
            limit_bytes=self._options.memory_bytes,
        )
        if not self._options.memory_bytes:
            return work, copied
        trial = Worker(dataclasses.replace(work, compact_edges=1, span_rows=1), self._graph, self._spec)
        taken = trial.taken_bytes()
        trial.close()
        at_once = pace(self._reads(work), self._options.memory_bytes, threads, taken)
        return dataclasses.replace(work, **dataclasses.asdict(at_once)), copied

    def _keep(self, out: Path, num_rows: int, dim: int) -> None:
        """Keep the rows of a file in memory, if enough is free."""
        kept = self._engine.kept
        if kept is not None:
            taken = sum(rows.array.nbytes for rows in kept.values())
            if taken + 4 * num_rows * dim <= _KEPT_SHARE * (available_bytes() + taken):
                kept[out] = MemoryRows(num_rows, dim)

    def _dim(self, level: int, node_type: str) -> int:
        return self._spec.levels[level][node_type].state_dim

    def _below(self, level: int, node_type: str) -> tuple[dict[str, Path], Path | None]:
        """Files of the rows one level below, and of the raw features, that a stage reads."""
        stage = self._spec.levels[level][node_type]
        found = {}
        if level:
            for name in below_of(stage, self._graph, node_type):
                if self._spec.levels[level - 1][name].file is None:
                    found[name] = feature_file(self._graph, name, self._work.folder)
                else:
                    found[name] = state_path(self._work.folder, level - 1, name)
        raw = feature_file(self._graph, node_type, self._work.folder) if stage.reads_features else None
        return found, raw

    def _reads(self, work: LevelWork) -> Reads:
        shapes = [rows_of(path) for path in work.below.values()]
        fanout, usual = 1, 1.0
        for sampler in needs.samplers_of(self._goal.spec, self._graph, work.level, work.node_type):
            most = self._graph.edges[sampler.adjacency.key].max_degree
            mean = sampler.adjacency.num_edges / max(1, work.num_nodes)
            fanout += most if sampler.fanout < 0 else min(most, sampler.fanout)
            usual += mean if sampler.fanout < 0 else min(mean, sampler.fanout)
        inputs = self._spec.levels[work.level][work.node_type].inputs
        return Reads(
            what=f"level {work.level} of {work.node_type!r}",
            base_bytes=sum(4 * rows * dim for rows, dim in shapes),
            row_bytes=sum(4 * dim for _, dim in shapes),
            out_bytes=4 * work.dim,
            fanout=fanout,
            usual=usual,
            edge_rows=any(entry.kind == "sources" for entry in inputs),
        )

    # Durability.

    def _checkpoint(self) -> None:
        """Sync the rows of finished spans, then mark them as done."""
        marks = []
        for (level, node_type), spans in self._pending.items():
            path = state_path(self._work.folder, level, node_type)
            rows = (self._engine.kept or {}).get(path)
            file = RowFile(path, writable=True)
            try:
                if rows is not None:
                    rows.save(file, merged(spans))
                file.sync()
            finally:
                file.close()
            marks += [Mark(level, node_type, a, b) for a, b in merged(spans)]
        self._work.mark(marks)
        self._pending.clear()
        self._synced = self._clock()

    def _save_what_is_done(self) -> None:
        """After a failure, try to mark finished work: a full disk may still have room for a mark."""
        try:
            self._checkpoint()
        except BatchError:
            self._pending.clear()

    def _end_level(self, level: int) -> None:
        """In a long run, mark the level and free its memory; in a short one that does not pay."""
        types = self._needed[level]
        if types:
            self._forget(level)
        if not types or self._clock() - self._began < self._options.checkpoint_s:
            return
        self._checkpoint()
        self._work.mark([Mark(level, name, complete=True) for name in types])
        if not self._options.keep:
            for number in range(level):
                for name in self._needed[number]:
                    state_path(self._work.folder, number, name).unlink(missing_ok=True)

    def _forget(self, level: int) -> None:
        """Release rows in memory below a finished level, which are not read any more."""
        kept = self._engine.kept
        for number in range(level if kept else 0):
            for name in self._needed[number]:
                path = state_path(self._work.folder, number, name)
                if kept is None or path not in kept:
                    continue
                if self._options.keep:
                    self._checkpoint()
                self._pending.pop((number, name), None)  # an interrupted run computes them again
                del kept[path]

    def _finish_states(self) -> None:
        self._checkpoint()
        self._work.mark(
            [
                Mark(level, name, complete=True)
                for level, types in enumerate(self._needed)
                for name in types
                if not self._work.is_marked(level, name, "complete")
            ]
        )

    # The tables.

    def _write(self) -> int:
        num_rows = 0
        for name in self._types:
            writer = self._writer = self._writer or self._open_table(name)
            writer.finish(self._engine.threads, self._advance)
            num_rows += writer.schema.num_rows
            self._writer = None
        return num_rows

    def _open_table(self, node_type: str) -> ResultWriter:
        sink, part = self._open_sink(), node_type if len(self._types) > 1 else ""
        schema = self._schema(node_type, part, isinstance(sink, WholeSink))
        path = self._final_file(len(self._needed) - 1, node_type)
        states = (self._engine.kept or {}).get(path) or RowFile(path)
        ids = self._graph.nodes[node_type].ids
        own = self._spec.by_type.get(node_type, self._spec)
        return ResultWriter(
            sink, schema, self._folder, own, states, lambda rows: {ID_COLUMN: ids.external(rows)}
        )

    def _final_file(self, top: int, node_type: str) -> Path:
        if self._spec.levels[top][node_type].file is None:
            return feature_file(self._graph, node_type, self._work.folder)
        return state_path(self._work.folder, top, node_type)

    def _schema(self, node_type: str, part: str, by_row: bool) -> TableSchema:
        nodes = self._graph.nodes[node_type]
        rows = None if self._goal.scored is None else self._goal.scored[node_type]
        if rows is None and len(nodes.ids.removed) and not by_row:
            rows = np.delete(np.arange(nodes.num_nodes), nodes.ids.removed)
        own = self._spec.by_type.get(node_type, self._spec)
        columns = columns_of(own, self._outputs, self._dim(len(self._needed) - 1, node_type))
        return table_of(
            self._work.manifest.identity,
            self._outputs,
            part,
            node_type=node_type,
            num_rows=nodes.num_nodes if rows is None else rows.shape[0],
            id_kind=nodes.ids.kind,
            columns=columns,
            rows=rows,
            classes=self._spec.classes,
        )

    def _report(self, num_rows: int) -> BatchReport:
        return report_of(
            self._work,
            num_rows,
            self._clock() - self._began,
            outputs=self._outputs,
            tables=self._types,
            recomputed=sum(level.computed for level in self._reports),
            threads=self._engine.threads,
            levels=tuple(self._reports),
            duplicates=self._goal.duplicates,
            kept=str(self._work.folder) if self._options.keep else "",
        )
