"""Computes spans on threads of this process: kernels and ONNX Runtime release the interpreter's lock."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hopline.artifact import ModelSpec
from hopline.graph import Graph
from hopline.jobs.batch.spans import Span
from hopline.jobs.batch.states import MemoryRows
from hopline.jobs.batch.work import LevelWork, Shaper, Worker
from hopline.process.cgroup import usable_cpus
from hopline.types import FloatArray

#: Messages of threads: a finished span with its data, or how a thread ended.
Messages: TypeAlias = "queue.SimpleQueue[tuple[Any, ...] | BaseException | None]"
#: Row buffers for each thread: one is filled while others wait for their turn.
_BUFFERS = 4


class LocalEngine:
    """An engine of threads in this process; see `work.Engine`."""

    def __init__(self, graph: Graph, spec: ModelSpec, threads: int = 0) -> None:
        self._graph = graph
        self._spec = spec
        self.kept: dict[Path, MemoryRows] | None = {}
        self.threads = threads or usable_cpus()

    def run(self, work: LevelWork, spans: Iterable[Span], done: Callable[[Span, int], None]) -> None:
        """As `Engine.run`; the calling thread only listens, so that it can sync meanwhile."""

        def do(worker: Worker, take: Callable[[], Span | None], messages: Messages) -> None:
            while (span := take()) is not None:
                messages.put((span, worker.do(*span)))

        def handle(item: tuple[Any, ...]) -> None:
            done(*item)

        self._run(work, list(spans), do, handle)

    def run_shaped(
        self,
        work: LevelWork,
        spans: Iterable[Span],
        shaper: Shaper,
        done: Callable[[Span, int, Any, bool], None],
    ) -> None:
        """Compute `spans`, which ascend, and pass on the shaped result of each, in order.

        Rows live in a few buffers that are reused: memory that is written for the first time costs more
        than computing its content.

        Args:
            done: called in the calling thread with a span, its sampled edges, the result of `shaper`
                (valid during the call), and whether its states are in the file.
        """
        buffers: queue.SimpleQueue[FloatArray | None] = queue.SimpleQueue()
        for _ in range(_BUFFERS * self.threads):
            buffers.put(np.empty((work.span_rows, work.dim), np.float32))
        ahead: dict[int, tuple[Any, ...]] = {}
        order = iter(wanted := list(spans))
        awaited = next(order, None)

        def do(worker: Worker, take: Callable[[], Span | None], messages: Messages) -> None:
            while True:
                # Before a span is taken, so that the earliest unfinished span is always in progress.
                buffer = buffers.get()
                span = None if buffer is None else take()
                if span is None or buffer is None:
                    buffers.put(buffer)
                    return
                begin, end = span
                num_edges = worker.compute(begin, end, buffer)
                saves = shaper.saves()
                if saves:
                    worker.save(begin, end, buffer[: end - begin])
                messages.put((span, num_edges, shaper.shape(begin, buffer[: end - begin]), saves, buffer))

        def handle(item: tuple[Any, ...]) -> None:
            nonlocal awaited
            ahead[item[0][0]] = item
            while awaited is not None and awaited[0] in ahead:
                *finished, buffer = ahead.pop(awaited[0])
                done(*finished)
                buffers.put(buffer)
                awaited = next(order, None)

        self._run(work, wanted, do, handle, lambda: buffers.put(None))

    def _run(
        self,
        work: LevelWork,
        wanted: list[Span],
        do: Callable[[Worker, Callable[[], Span | None], Messages], None],
        handle: Callable[[tuple[Any, ...]], None],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        if not wanted:
            return
        messages: Messages = queue.SimpleQueue()
        todo = iter(wanted)
        lock = threading.Lock()
        stop = threading.Event()
        count = min(self.threads, len(wanted))

        def take() -> Span | None:
            with lock:
                return None if stop.is_set() else next(todo, None)

        def serve() -> None:
            try:
                worker = Worker(work, self._graph, self._spec, kept=self.kept or {})
                try:
                    do(worker, take, messages)
                finally:
                    worker.close()
            except BaseException as error:  # boundary of a thread: the caller raises the error
                messages.put(error)
            else:
                messages.put(None)

        threads = [threading.Thread(target=serve, name=f"batch-{k}", daemon=True) for k in range(count)]
        for thread in threads:
            thread.start()
        failure: BaseException | None = None
        try:
            while count:
                item = messages.get()
                if isinstance(item, tuple):
                    handle(item)
                    continue
                count -= 1
                if item is not None:
                    failure = failure or item
                    stop.set()
                    wake()
        finally:
            stop.set()
            wake()
            for thread in threads:
                thread.join()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Release rows in memory."""
        self.kept = {}
