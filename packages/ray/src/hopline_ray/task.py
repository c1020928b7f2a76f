"""The work of a process of a Ray cluster: computes rows of some spans and returns them; imports no Ray.

It reads the model, the graph and the level below from folders that all machines can read, and writes
nothing. The level that it works on stays open in the process from one task to the next.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hopline.errors import BatchError, HoplineError
from hopline.graph import Graph
from hopline.jobs.batch.spans import Span
from hopline.jobs.batch.work import LevelWork, Worker
from hopline.types import FloatArray


@dataclass(frozen=True)
class Order:
    """A level of a run, sent with every task.

    Attributes:
        number: unique for every level of every run, so that open files of another level are not reused.
        work: of the level, with absolute paths.
        graph_version: of the graph that the run reads.
        sizes: file of the level below (or of ids) -> its bytes.
    """

    number: str
    work: LevelWork
    graph_version: str
    sizes: dict[Path, int]


#: In this process: the order's number and the worker that was opened for it.
_opened: tuple[str, Worker] | None = None


def compute(order: Order, spans: list[Span]) -> tuple[FloatArray, list[int]]:
    """Compute the rows of spans in order: float32 [n, dim]; also return the sampled edges of each span.

    Raises:
        BatchError: this machine cannot read the files of the run, or the rows cannot be computed.
    """
    try:
        worker = _worker(order)
        rows = np.empty((sum(end - begin for begin, end in spans), order.work.dim), np.float32)
        edges, at = [], 0
        for begin, end in spans:
            edges.append(worker.compute(begin, end, rows[at:]))
            at += end - begin
        return rows, edges
    except BatchError:
        raise
    except HoplineError as error:  # converted, so that it can be pickled
        raise BatchError(f"on {socket.gethostname()}: {error}") from None


def _worker(order: Order) -> Worker:
    global _opened
    if _opened is not None and _opened[0] == order.number:
        return _opened[1]
    if _opened is not None:
        _opened[1].close()
        _opened = None
    for path, size in order.sizes.items():
        _check(path, size)
    _check(order.work.model_folder / "model.json")
    _check(order.work.graph_folder / "graph.json")
    graph = Graph.open(order.work.graph_folder)
    if graph.version != order.graph_version:
        raise BatchError(
            f"on {socket.gethostname()}, {order.work.graph_folder} holds version {graph.version} of the "
            f"graph, the run reads {order.graph_version}; all machines need the same folder there"
        )
    _opened = (order.number, Worker(order.work, graph, writes=False))
    return _opened[1]


def _check(path: Path, size: int | None = None) -> None:
    """Fail unless this machine can read a file of the right size."""
    try:
        found = path.stat().st_size
    except OSError as error:
        raise BatchError(
            f"{socket.gethostname()} cannot read {path} ({error.strerror}): the model, the graph and the "
            "run's work folder (--work) must be on a file system that all machines of the cluster mount "
            "at the same path"
        ) from None
    if size is not None and found != size:
        raise BatchError(f"{socket.gethostname()} sees {found} bytes of {path} instead of {size}")
