"""Passes final states through the head into the sink, in order.

While the last level is computed, rows whose predecessors are all done are already written, by the thread
that listens to the engine; the rest is written on all threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from hopline.artifact import ModelSpec
from hopline.graph import IdIndex
from hopline.jobs.batch.head import Head
from hopline.jobs.batch.memory_rows import MemoryRows
from hopline.jobs.batch.progress import Advance
from hopline.jobs.batch.sink import ID_COLUMN, Sink, TableSchema
from hopline.jobs.batch.states import RowFile
from hopline.jobs.batch.work import SPAN_ROWS
from hopline.types import AnyArray, FloatArray, IdArray

Columns = dict[str, AnyArray | list[str]]


class ResultWriter:
    """Writes one table.

    Args:
        sink: opened here; the caller must always end with `finish` or `abort`.
        schema: of the table.
        folder, spec: the model.
        states: the final level's rows.
        ids: of the node type.

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
        ids: IdIndex,
    ) -> None:
        self._sink = sink
        self.schema = schema
        self._folder = folder
        self._spec = spec
        self._states = states
        self._ids = ids
        self._names = tuple(column.name for column in schema.columns)
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
        return {ID_COLUMN: self._ids.external(rows)} | self._head().run(states)

    def _head(self) -> Head:
        """The head of the calling thread."""
        if not hasattr(self._own, "head"):
            dim = self._states.array.shape[1]
            self._own.head = Head(self._folder, self._spec, dim, self._names)
        head: Head = self._own.head
        return head
