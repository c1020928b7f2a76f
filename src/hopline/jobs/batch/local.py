"""Spans on threads of this process: kernels and ONNX Runtime release the interpreter's lock."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from hopline.artifact import ModelSpec
from hopline.graph import Graph
from hopline.jobs.batch.memory_rows import MemoryRows
from hopline.jobs.batch.spans import Span
from hopline.jobs.batch.work import LevelWork, Worker


class LocalEngine:
    """See `work.Engine`.

    Args:
        graph, spec: opened once for all threads.
        threads: 0 means one for each processor that the process may use.
    """

    def __init__(self, graph: Graph, spec: ModelSpec, threads: int = 0) -> None:
        self._graph = graph
        self._spec = spec
        self.kept: dict[Path, MemoryRows] | None = {}
        self.threads = threads or len(os.sched_getaffinity(0))

    def run(self, work: LevelWork, spans: Iterable[Span], done: Callable[[Span, int], None]) -> None:
        """As `Engine.run`: the calling thread only listens, so that it can sync meanwhile."""
        wanted = list(spans)
        if not wanted:
            return
        told: queue.SimpleQueue[tuple[Span, int] | BaseException | None] = queue.SimpleQueue()
        todo = iter(wanted)
        lock = threading.Lock()
        stop = threading.Event()
        count = min(self.threads, len(wanted))

        def serve() -> None:
            try:
                worker = Worker(work, self._graph, self._spec, kept=self.kept or {})
                try:
                    while not stop.is_set():
                        with lock:
                            span = next(todo, None)
                        if span is None:
                            break
                        told.put((span, worker.do(*span)))
                finally:
                    worker.close()
            except BaseException as error:  # the boundary of a thread: the caller raises it
                told.put(error)
            else:
                told.put(None)

        threads = [threading.Thread(target=serve, name=f"batch-{k}", daemon=True) for k in range(count)]
        for thread in threads:
            thread.start()
        failure: BaseException | None = None
        try:
            while count:
                item = told.get()
                if isinstance(item, tuple):
                    done(*item)
                    continue
                count -= 1
                if item is not None:
                    failure = failure or item
                    stop.set()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Let go of rows in memory."""
        self.kept = {}
