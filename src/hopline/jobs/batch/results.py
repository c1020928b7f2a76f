"""The last pass: final states through the head into the sink, in order, on all threads."""

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
from hopline.jobs.batch.progress import Advance
from hopline.jobs.batch.sink import ID_COLUMN, Sink, TableSchema
from hopline.jobs.batch.states import RowFile
from hopline.jobs.batch.work import SPAN_ROWS
from hopline.types import AnyArray, FloatArray

_Columns = dict[str, AnyArray | list[str]]


def write_table(
    sink: Sink,
    schema: TableSchema,
    folder: Path,
    spec: ModelSpec,
    states: RowFile,
    ids: IdIndex,
    threads: int,
    advance: Advance,
) -> None:
    """Write a table and commit it.

    Args:
        folder, spec: the model.
        states: rows of the final level.
        ids: of the node type.

    Raises:
        SinkError: it could not be written; nothing of it is visible.
    """
    names = tuple(column.name for column in schema.columns)
    done = sink.open(schema)
    try:
        for begin, columns in _units(schema, folder, spec, states, ids, threads, names, done):
            sink.write(begin, columns)
            advance("writing", begin + len(columns[ID_COLUMN]), schema.num_rows)
        sink.commit()
    except BaseException:
        sink.abort()
        raise


def _units(
    schema: TableSchema,
    folder: Path,
    spec: ModelSpec,
    states: RowFile,
    ids: IdIndex,
    threads: int,
    names: tuple[str, ...],
    done: int,
) -> Iterator[tuple[int, _Columns]]:
    """Rows of the table from `done` on, in order."""
    own = threading.local()

    def unit(begin: int) -> tuple[int, _Columns]:
        if not hasattr(own, "head"):
            own.head = Head(folder, spec, states.array.shape[1], names)
        end = min(begin + SPAN_ROWS, schema.num_rows)
        if schema.rows is None:
            rows = np.arange(begin, end)
            found: FloatArray = np.empty((end - begin, states.array.shape[1]), np.float32)
            states.read_range(begin, end, found)
        else:
            rows = schema.rows[begin:end]
            found = np.empty((end - begin, states.array.shape[1]), np.float32)
            states.read(rows, found)
        columns: _Columns = {ID_COLUMN: ids.external(rows)}
        columns.update(own.head.run(found))
        return begin, columns

    with ThreadPoolExecutor(threads, thread_name_prefix="batch-head") as pool:
        waiting: deque[Future[tuple[int, _Columns]]] = deque()
        try:
            for begin in range(done, schema.num_rows, SPAN_ROWS):
                waiting.append(pool.submit(unit, begin))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
