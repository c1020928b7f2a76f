"""The work of one level, described by paths: any thread, process or machine that reads them can do a part.

Rows are computed in spans of the level's list of rows. How the list is cut into spans, which worker
computes a span, and the order make no difference to a byte of the result.

`pace` keeps the work within the memory limit of a run. Rows of the level below are read at random. If they
fit in memory, they are read in place, mapped. If they do not, each thread works on so few destinations at
a time that the distinct rows which these read fit a buffer, and reads them into it in file order: each page
once for each piece of work, never at random. The arithmetic is the same, and so is every bit of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from hopline.artifact import ModelSpec, read_spec
from hopline.errors import BatchError
from hopline.graph import Graph
from hopline.jobs.batch.memory import HIGH, MemoryGuard, graph_arrays, resident_bytes
from hopline.jobs.batch.rows import EDGE_BYTES, PIECE_EDGES, PIECE_ROWS, RowComputer, with_all_neighbors
from hopline.jobs.batch.spans import Span
from hopline.jobs.batch.states import MemoryRows, RowFile
from hopline.types import FloatArray, IdArray

#: Rows of a span, unless the memory limit requires another number.
SPAN_ROWS = 4096

_NO_ROWS: FloatArray = np.empty((0, 0), np.float32)


@dataclass(frozen=True)
class LevelWork:
    """One (level, node type) to compute. Can be pickled.

    Attributes:
        model_folder, graph_folder: arguments of `read_spec` and `Graph.open`.
        level, node_type: of the rows.
        exact: all neighbours, not the model's fanouts.
        below: node type -> `.npy` file of rows one level below; that of the features where the level below
            has no file.
        raw: this node type's features as a `.npy` file of float32, where the stage reads them.
        out: the file for the rows; created by `states.create`.
        num_nodes, dim: shape of `out`.
        num_rows: rows to compute.
        rows: None means all; else a `.npy` file of ids, int64 [num_rows], ascending.
        compact_edges: see `RowComputer`.
        span_rows: rows of a span at most.
        limit_bytes: of resident memory of a process that computes spans; 0 means no limit.
    """

    model_folder: Path
    graph_folder: Path
    level: int
    node_type: str
    exact: bool
    below: dict[str, Path]
    raw: Path | None
    out: Path
    num_nodes: int
    dim: int
    num_rows: int
    rows: Path | None = None
    compact_edges: int = 0
    limit_bytes: int = 0
    span_rows: int = SPAN_ROWS


def listed(rows: IdArray | None, begin: int, end: int) -> IdArray:
    """Rows [begin, end) of a level's list, int64 [end - begin]; `rows` None means all rows."""
    return np.arange(begin, end) if rows is None else np.array(rows[begin:end], np.int64)


class Worker:
    """Computes spans of one level; for one thread.

    Args:
        work: of the level.
        graph, spec: if the caller has them open already (`spec` as in model.json).
        writes: False for a worker that only computes, and does not write the file.
        kept: file name -> rows in memory that are read and written instead of the file.
    """

    def __init__(
        self,
        work: LevelWork,
        graph: Graph | None = None,
        spec: ModelSpec | None = None,
        *,
        writes: bool = True,
        kept: Mapping[Path, MemoryRows] = MappingProxyType({}),
    ) -> None:
        self.work = work
        graph = graph if graph is not None else Graph.open(work.graph_folder)
        spec = spec if spec is not None else read_spec(work.model_folder, verify=False)
        spec = with_all_neighbors(spec) if work.exact else spec
        self._files = {name: kept.get(path) or RowFile(path) for name, path in work.below.items()}
        self._raw = RowFile(work.raw) if work.raw is not None else None
        self._out = kept.get(work.out) or RowFile(work.out, writable=True) if writes else None
        self._rows: IdArray | None = None if work.rows is None else np.load(work.rows, mmap_mode="r")
        self._buffer = np.empty((work.span_rows, work.dim), np.float32)
        self._computer = RowComputer(
            work.model_folder,
            spec,
            graph,
            work.level,
            work.node_type,
            self._files,
            _NO_ROWS if self._raw is None else self._raw.array,
            work.compact_edges,
        )
        self._guard: MemoryGuard | None = None
        if work.limit_bytes:
            mapped = [file.array for file in self._files.values()]
            mapped += [] if self._raw is None else [self._raw.array]
            self._guard = MemoryGuard(work.limit_bytes, [*mapped, *graph_arrays(graph)])

    def do(self, begin: int, end: int) -> int:
        """Compute rows [begin, end) of the list and write them to the file.

        Args:
            begin, end: at most `span_rows` apart.

        Returns: sampled edges.
        Raises:
            BatchError: the disk is full.
        """
        assert self._out is not None
        if isinstance(self._out, MemoryRows) and self._rows is None:
            return self.compute(begin, end, self._out.part(begin, end))
        num_edges = self.compute(begin, end, self._buffer)
        self._out.write(listed(self._rows, begin, end), self._buffer[: end - begin])
        return num_edges

    def compute(self, begin: int, end: int, out: FloatArray) -> int:
        """Compute rows [begin, end) of the list into out[: end - begin], float32 [>= n, dim].

        Args:
            begin, end: at most `span_rows` apart.

        Returns: sampled edges.
        """
        num_edges = self._computer.compute(listed(self._rows, begin, end), out[: end - begin])
        if self._guard is not None:
            self._guard.check()
        return num_edges

    def save(self, begin: int, end: int, states: FloatArray) -> None:
        """Write computed rows [begin, end) of the list to the file."""
        assert self._out is not None
        self._out.write(listed(self._rows, begin, end), states)

    def taken_bytes(self) -> int:
        """Resident memory once a row has been computed, without pages that can be released."""
        assert self._guard is not None
        ids = np.arange(min(1, self.work.num_nodes))
        self._computer.compute(ids, self._buffer[: ids.shape[0]])
        self._guard.drop()
        return resident_bytes()

    def close(self) -> None:
        """Close the files."""
        for file in (*self._files.values(), self._out, self._raw):
            if file is not None:
                file.close()


@dataclass(frozen=True)
class Shaper:
    """Converts a span's states for their receiver, on the thread that computed them.

    Attributes:
        shape: called with the first row and the states float32 [n, dim]; returns what is passed on, maybe
            views.
        saves: True if the states are also written to the level's file; called for each span.
    """

    shape: Callable[[int, FloatArray], Any]
    saves: Callable[[], bool]


class Engine(Protocol):
    """Computes the spans of a level, on threads, processes or machines.

    Attributes:
        threads: that work at the same time in one process; each takes its share of `limit_bytes`.
        kept: file -> rows in memory that replace it, for an engine of this process; None if other
            processes compute, which read files only.
    """

    threads: int
    kept: dict[Path, MemoryRows] | None

    def run(self, work: LevelWork, spans: Iterable[Span], done: Callable[[Span, int], None]) -> None:
        """Compute `spans`, in any order.

        Args:
            spans: each of at most `work.span_rows` rows.
            done: called in the calling thread with a span and its sampled edges, after its rows are in
                the file (where this process's sync finds them).

        Raises:
            HoplineError: a span failed; others may be done.
        """
        ...

    def close(self) -> None:
        """Release threads, processes or a cluster."""
        ...


#: Of a thread: ONNX Runtime's arena, the interpreter's objects, and pages that stay mapped for a while.
_THREAD_BYTES = 24 << 20
#: Edges of a call of a stage that reads rows of edges (engine/stage.py), which copies them.
_MOST_EDGES = 2048


@dataclass(frozen=True)
class Reads:
    """The data that computing a level reads.

    Attributes:
        what: name of the level, for messages.
        base_bytes: of the files below.
        row_bytes: of one row of each of them, together.
        out_bytes: of a computed row.
        fanout: neighbours of a row at most, over all edge types, with the row itself.
        usual: average of `fanout`.
        edge_rows: the stage reads a row for each edge.
    """

    what: str
    base_bytes: int
    row_bytes: int
    out_bytes: int
    fanout: int
    usual: float
    edge_rows: bool


@dataclass(frozen=True)
class _Pace:
    """The sizes of the pieces of work; see `LevelWork`."""

    compact_edges: int = 0
    span_rows: int = SPAN_ROWS


def pace(reads: Reads, limit_bytes: int, threads: int, taken_bytes: int) -> _Pace:
    """Choose the sizes of the pieces that each thread works on.

    Args:
        limit_bytes: of resident memory; 0 means no limit.
        taken_bytes: memory of the process before it works: libraries, kernels, the model.

    Raises:
        BatchError: the limit is too small for the largest neighbourhood; the message names a sufficient
            limit.
    """
    if not limit_bytes:
        return _Pace()
    piece = max(min(PIECE_EDGES, PIECE_ROWS * reads.fanout), reads.fanout)
    fixed = _THREAD_BYTES + SPAN_ROWS * reads.out_bytes
    if reads.edge_rows:
        fixed += 3 * max(_MOST_EDGES, reads.fanout) * max(reads.row_bytes, 4)
    room = HIGH * limit_bytes - taken_bytes
    if reads.base_bytes + threads * (fixed + piece * EDGE_BYTES) <= room:
        return _Pace()
    of_edge = reads.row_bytes + EDGE_BYTES + reads.out_bytes / reads.usual
    edges = int((room / threads - fixed) // of_edge)
    if edges < reads.fanout:
        enough = (taken_bytes + threads * (fixed + reads.fanout * of_edge)) / HIGH
        alone = (taken_bytes + fixed + reads.fanout * of_edge) / HIGH
        fewer = f", or {_mib(alone)} with --threads 1" if threads > 1 else ""
        raise BatchError(
            f"--memory {_mib(limit_bytes)} is too little for {reads.what}, whose largest neighbourhood is "
            f"{reads.fanout:,} rows; it needs {_mib(enough)}{fewer}"
        )
    return _Pace(edges, max(SPAN_ROWS, int(edges / reads.usual)))


def _mib(num_bytes: float) -> str:
    return f"{-int(-num_bytes // (1 << 20))}MiB"
