"""Computes spans on a Ray cluster, as tasks; this process assigns them and alone writes the results.

    driver ── spans ──► task on any node ── rows (Ray's object store) ──► driver ── pwrite ──► state file
                          └── maps model, graph and the level below from a shared file system

The level below is read from mapped files and not from Ray's object store: any row may be needed anywhere,
so every node's store would have to hold all of it. Of a mapped file, a node caches only the pages that it
reads. Rows come back through the object store, so that there is one writer: shared file systems guarantee
nothing to several writers of one page, and a machine that was given up cannot write into a later run.

A task changes nothing, so Ray may repeat one when its process or machine dies. If this process dies, the
work that was not marked in the journal is lost.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import ray
import ray.exceptions

from hopline.artifact import ModelSpec
from hopline.errors import BatchError
from hopline.files import sync
from hopline.graph import Graph
from hopline.jobs.batch.spans import Span
from hopline.jobs.batch.states import RowFile
from hopline.jobs.batch.work import LevelWork, listed
from hopline.process.cgroup import usable_cpus
from hopline.types import IdArray
from hopline_ray import task as ray_task
from hopline_ray.task import Order

#: Tries of a task whose process or machine dies; rows that kill the process each time do not fail because
#: of the machine.
_RETRIES = 8
#: Tasks that are assigned for each processor: one works, one waits with its arguments there.
_AHEAD = 2
#: Bytes of rows that a task returns, unless that would leave processors idle.
_TASK_BYTES = 8 << 20
#: Tasks for each processor that a level is cut into at least, so that all end at about the same time.
_TASKS_EACH = 4
#: Store of a cluster that is started for the run, for each processor: rows that may wait to be written.
_STORE_BYTES = 4 * _AHEAD * _TASK_BYTES
_LEAST_STORE_BYTES = 128 << 20
_CONNECT_S = 5.0
#: Seconds between checks of the number of processors, and for which there may be none.
_LOOK_S, _PATIENCE_S = 5.0, 300.0


class RayEngine:
    """An engine of tasks on a Ray cluster; see `work.Engine`.

    Args:
        graph, spec: of the run; other machines open the graph by its path.
        threads: processors of the cluster that may work at the same time; 0 means all. A cluster that is
            started here has as many.
        address: of the cluster; "" uses RAY_ADDRESS; without that, a cluster is started on this machine
            for the duration of the run. An existing connection of this process is used unchanged.

    Attributes:
        threads: of this process, which computes outputs from final states on all processors.

    Raises:
        BatchError: there is no cluster at the address.
    """

    def __init__(self, graph: Graph, spec: ModelSpec, threads: int = 0, *, address: str = "") -> None:
        if graph.path is None:
            raise BatchError("a batch run needs a saved graph; save it first")
        spec.check_plain_features("a run on Ray")
        self._graph_folder, self._graph_version = graph.path.absolute(), graph.version
        self._limit, self.kept = threads, None  # the processes that compute read files only
        self.threads = threads or usable_cpus()
        self._connected = not ray.is_initialized()
        if self._connected:
            self._connect(address or os.environ.get("RAY_ADDRESS", ""))
        task = ray.remote(ray_task.compute)
        self._task = task.options(num_cpus=1, num_returns=1, max_retries=_RETRIES)

    def run(self, work: LevelWork, spans: Iterable[Span], done: Callable[[Span, int], None]) -> None:
        """As `Engine.run`."""
        wanted = list(spans)
        if not wanted:
            return
        order = self._order(work)
        rows: IdArray | None = None if work.rows is None else np.load(work.rows, mmap_mode="r")
        tasks = _cut(wanted, work, self._processors())
        out = RowFile(work.out, writable=True)
        pending: dict[Any, list[Span]] = {}
        try:
            more = True
            room, looked = _AHEAD * self._processors(), time.monotonic()
            while more or pending:
                fresh = list(islice(tasks, max(0, room - len(pending)))) if more else []
                more = more and (bool(fresh) or len(pending) >= room)
                for some in fresh:
                    pending[self._task.remote(order, some)] = some
                for ref in self._wait(list(pending)):
                    some = pending.pop(ref)
                    self._take(ref, some, rows, out, done)
                if time.monotonic() - looked >= _LOOK_S:
                    room, looked = max(1, _AHEAD * self._processors()), time.monotonic()
        finally:
            out.close()
            for ref in pending:
                ray.cancel(ref)

    def close(self) -> None:
        """Leave the cluster; a cluster that was started here ends."""
        if self._connected:
            self._connected = False
            ray.shutdown()

    def _take(
        self,
        ref: Any,
        spans: list[Span],
        rows: IdArray | None,
        out: RowFile,
        done: Callable[[Span, int], None],
    ) -> None:
        """Write the rows of a task."""
        try:
            values, edges = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, BatchError):
                raise error.cause from None
            raise BatchError(f"a task of the Ray cluster failed: {error}") from None
        except ray.exceptions.RayError as error:
            raise BatchError(
                f"rows {spans[0][0]:,} to {spans[-1][1]:,} could not be computed on the Ray cluster, tried "
                f"{_RETRIES + 1} times ({type(error).__name__}: {_first_line(error)}); finished work is "
                "kept: fix this and start the same command again"
            ) from error
        at = 0
        for (begin, end), num_edges in zip(spans, edges, strict=True):
            out.write(listed(rows, begin, end), values[at : at + end - begin])
            at += end - begin
            done((begin, end), num_edges)

    def _wait(self, refs: list[Any]) -> list[Any]:
        """Tasks that ended; waits for at least one."""
        idle_since = time.monotonic()
        while refs:
            ready: list[Any]
            ready, _ = ray.wait(refs, num_returns=1, timeout=_LOOK_S)
            if ready:
                # Those that ended meanwhile, too.
                ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
                return ready
            if self._processors():
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > _PATIENCE_S:
                raise BatchError(
                    f"the Ray cluster has had no processor for {_PATIENCE_S:.0f} s; finished work is kept: "
                    "start the same command again when it has one"
                )
        return []

    def _processors(self) -> int:
        found = int(ray.cluster_resources().get("CPU", 0))
        return min(found, self._limit) if self._limit else found

    def _order(self, work: LevelWork) -> Order:
        """A level for other machines: with absolute paths."""
        work = dataclasses.replace(
            work,
            model_folder=work.model_folder.absolute(),
            graph_folder=self._graph_folder,
            below={name: path.absolute() for name, path in work.below.items()},
            raw=None if work.raw is None else work.raw.absolute(),
            rows=None if work.rows is None else work.rows.absolute(),
            out=work.out.absolute(),
        )
        read = [*work.below.values(), *(path for path in (work.raw, work.rows) if path is not None)]
        for path in read:  # so that other machines see the complete file
            sync(path)
        sizes = {path: path.stat().st_size for path in read}
        return Order(secrets.token_hex(8), work, self._graph_version, sizes)

    def _connect(self, address: str) -> None:
        # No usage statistics for a cluster of one run on one machine, unless its owner enables them.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
        if not address or address == "local":
            address = "local"
            options |= {
                "num_cpus": self.threads,
                "include_dashboard": False,
                "object_store_memory": max(_LEAST_STORE_BYTES, _STORE_BYTES * self.threads),
            }
        else:
            _check_listens(address)
        try:
            ray.init(address=address, **options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise _no_cluster(address, error) from error


def _check_listens(address: str) -> None:
    """Fail unless a server answers at host:port: Ray itself would try for minutes.

    Raises:
        BatchError: no server answers.
    """
    host, colon, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if not colon or not port.isdecimal():
        return  # for example "auto"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from None


def _no_cluster(address: str, error: BaseException) -> BatchError:
    return BatchError(
        f"there is no Ray cluster at {address} (--ray-address, RAY_ADDRESS): {_first_line(error)}"
    )


def _cut(spans: list[Span], work: LevelWork, processors: int) -> Iterator[list[Span]]:
    """Group spans into tasks."""
    span_bytes = 4 * work.dim * work.span_rows
    most = max(1, min(_TASK_BYTES // max(1, span_bytes), len(spans) // max(1, _TASKS_EACH * processors)))
    for at in range(0, len(spans), most):
        yield spans[at : at + most]


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
