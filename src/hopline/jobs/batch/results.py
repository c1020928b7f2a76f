"""Computes the columns of the table from final states, and passes them to the sink, in order.

While the last level is computed, rows whose predecessors are all done are already written, by the thread
that listens to the engine; the rest is written on all threads.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hopline.artifact import ModelSpec
from hopline.engine import outputs as out_of
from hopline.engine.tasks import default_outputs, outputs_of
from hopline.errors import BadRequest
from hopline.jobs.batch.journal import RunIdentity, WorkFolder
from hopline.jobs.batch.memory import peak_bytes
from hopline.jobs.batch.report import Advance, BatchReport
from hopline.jobs.batch.sink import ID_COLUMN, Column, Sink, TableSchema
from hopline.jobs.batch.states import MemoryRows, RowFile
from hopline.jobs.batch.work import SPAN_ROWS
from hopline.runtimes.onnx import CHUNK_ROWS, RowStage
from hopline.types import AnyArray, FloatArray, IdArray

#: The final level's row itself, as in the engine's state cache.
_STATE = "state"


def available_outputs(spec: ModelSpec) -> tuple[str, ...]:
    """Outputs that a run can write for a model; for single nodes, a link model has only its embedding."""
    if spec.head.kind == "link":
        return ("embedding", _STATE)
    return (*outputs_of(spec), _STATE)


def chosen_outputs(spec: ModelSpec, names: tuple[str, ...]) -> tuple[str, ...]:
    """The outputs of a run, each once; an empty tuple means what the server answers.

    Raises:
        BadRequest: the model has no such output; the message lists its outputs.
    """
    known = available_outputs(spec)
    if not names:
        return ("embedding",) if spec.head.kind == "link" else default_outputs(spec)
    unknown = [name for name in names if name not in known]
    if unknown:
        pairs = "; scores of pairs are not rows of nodes" if spec.head.kind == "link" else ""
        raise BadRequest(
            f"model {spec.name}/{spec.version} has no output {', '.join(map(repr, unknown))}; a batch run "
            f"can write {', '.join(known)}{pairs}"
        )
    return tuple(dict.fromkeys(names))


def with_heads(spec: ModelSpec, names: tuple[str, ...]) -> ModelSpec:
    """The model with those of its heads of several node types that some of the outputs are of."""
    first, *others = (own.head for own in spec.by_type.values() if {*names} & {*available_outputs(own)})
    return msgspec.structs.replace(spec, head=first, heads=tuple(others))


def columns_of(spec: ModelSpec, names: tuple[str, ...], state_dim: int) -> tuple[Column, ...]:
    """The columns of the table: those of `names` that the model has."""
    offers, found = outputs_of(spec), []
    names = tuple(name for name in names if name in available_outputs(spec))
    a, b = spec.head.embedding or (0, state_dim)  # of a link model, one of two types
    for name in names:
        if name in (_STATE, "embedding"):
            found.append(Column(name, "float32", state_dim if name == _STATE else b - a))
            continue
        tensor = offers[name].tensor
        width = tensor.shape[1] if len(tensor.shape) == 2 else 0
        found.append(Column(name, "int64" if tensor.datatype == "INT64" else "float32", width))
    return tuple(found)


def table_of(identity: RunIdentity, outputs: tuple[str, ...], part: str, **own: Any) -> TableSchema:
    """The schema of a table of a run; `own` are its other fields."""
    run = hashlib.blake2b(f"{identity.run_id} {outputs} {part}".encode(), digest_size=8)
    named = ("model", "version", "model_hash", "graph_version", "exact")
    about: dict[str, Any] = {name: getattr(identity, name) for name in named}
    return TableSchema(run_id=run.hexdigest(), part=part, **about, **own)


def report_of(work: WorkFolder, rows: int, seconds: float, **own: Any) -> BatchReport:
    """The report of a run that ends now; `own` are its other fields."""
    identity = work.manifest.identity
    return BatchReport(
        model=identity.model,
        version=identity.version,
        graph_version=identity.graph_version,
        exact=identity.exact,
        rows=rows,
        resumed=work.resumed,
        seconds=seconds,
        rows_per_s=rows / seconds if seconds > 0 else 0.0,
        peak_rss_bytes=peak_bytes(),
        **own,
    )


class _Head:
    """The head of a model over many rows; for one thread."""

    def __init__(self, folder: Path, spec: ModelSpec, state_dim: int, names: tuple[str, ...]) -> None:
        self._spec = spec
        self._offers = outputs_of(spec)
        self._names = names
        self._stage: RowStage | None = None
        head = spec.head
        if head.file is not None and head.kind == "node":
            self._stage = RowStage(folder / head.file, ["h"], [state_dim], "logits", head.output_dim, 1)

    def run(self, states: FloatArray) -> dict[str, AnyArray]:
        """Columns of float32 [n, state_dim] states; new arrays, or views of the states."""
        a, b = self._spec.head.embedding or (0, states.shape[1])
        known = {_STATE: states, "embedding": states[:, a:b]}
        named = [name for name in self._names if name not in known]
        found = out_of.named_outputs(named, self._offers, states, lambda: self._logits(states))
        found.update(known)
        return {name: found[name] for name in self._names}

    def _logits(self, states: FloatArray) -> FloatArray:
        if self._stage is None:
            return states
        n = states.shape[0]
        logits = np.empty((n, self._spec.head.output_dim), np.float32)
        for a in range(0, n, CHUNK_ROWS):
            b = min(a + CHUNK_ROWS, n)
            self._stage.inputs[0][: b - a] = states[a:b]
            logits[a:b] = self._stage.run(b - a)
        return logits


Columns = dict[str, AnyArray | list[str]]


class ResultWriter:
    """Writes one table.

    Args:
        sink: opened here; the caller must always end with `finish` or `abort`.
        schema: of the table.
        folder, spec: the model.
        states: the final level's rows.
        named: the columns before the outputs, of rows int64 [n] of the table.

    Raises:
        SinkError: the sink refuses the table.
    """

    def __init__(
        self,
        sink: Sink,
        schema: TableSchema,
        folder: Path,
        spec: ModelSpec,
        states: RowFile | MemoryRows,
        named: Callable[[IdArray], Columns],
    ) -> None:
        self._sink = sink
        self.schema = schema
        self._folder = folder
        self._spec = spec
        self._states = states
        self._named = named
        offers = available_outputs(spec)
        self._names = tuple(column.name for column in schema.columns if column.name in offers)
        self._own = threading.local()
        self._buffer = np.empty((SPAN_ROWS, self._states.array.shape[1]), np.float32)
        self._at = sink.open(schema)

    def feed(self, ready: int) -> None:
        """Write those of the table's rows [0, ready) that are not written yet, in spans."""
        while self._at < ready and (ready - self._at >= SPAN_ROWS or ready == self.schema.num_rows):
            self.put(self._columns(self._at, self._buffer))

    @property
    def at(self) -> int:
        """The next row to write."""
        return self._at

    def shape(self, begin: int, states: FloatArray) -> Columns:
        """Columns of rows from `begin` on, computed from their states; on any thread, for `put`."""
        return self._shaped(np.arange(begin, begin + states.shape[0]), states)

    def put(self, columns: Columns) -> None:
        """Write columns of the rows from `at` on."""
        self._sink.write(self._at, columns)
        self._at += len(columns[ID_COLUMN])

    def finish(self, threads: int, advance: Advance) -> None:
        """Write the rest and commit; the last level is done.

        Raises:
            SinkError: the table could not be written; nothing of it is visible.
        """
        with ThreadPoolExecutor(threads, thread_name_prefix="batch-head") as pool:
            for columns in self._rest(pool, threads):
                self.put(columns)
                advance("writing", self._at, self.schema.num_rows)
        self._sink.commit()
        self._states.close()

    def abort(self) -> None:
        """Cancel; nothing becomes visible."""
        self._sink.abort()
        self._states.close()

    def _rest(self, pool: ThreadPoolExecutor, threads: int) -> Iterator[Columns]:
        waiting: deque[Future[Columns]] = deque()
        try:
            for begin in range(self._at, self.schema.num_rows, SPAN_ROWS):
                waiting.append(pool.submit(self._columns, begin))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def _columns(self, begin: int, buffer: FloatArray | None = None) -> Columns:
        """Rows from `begin` on, at most SPAN_ROWS; in new arrays unless a buffer is passed."""
        dim = self._states.array.shape[1]
        end = min(begin + SPAN_ROWS, self.schema.num_rows)
        buffer = np.empty((end - begin, dim), np.float32) if buffer is None else buffer
        found: FloatArray = buffer[: end - begin]
        if self.schema.rows is None:
            rows = np.arange(begin, end)
            if isinstance(self._states, MemoryRows):
                found = self._states.array[begin:end]
            else:
                self._states.read_range(begin, end, found)
        else:
            rows = self.schema.rows[begin:end]
            self._states.read(rows, found)
        return self._shaped(rows, found)

    def _shaped(self, rows: IdArray, states: FloatArray) -> Columns:
        return self._named(rows) | self._head().run(states)

    def _head(self) -> _Head:
        """The head of the calling thread."""
        if not hasattr(self._own, "head"):
            dim = self._states.array.shape[1]
            self._own.head = _Head(self._folder, self._spec, dim, self._names)
        head: _Head = self._own.head
        return head
