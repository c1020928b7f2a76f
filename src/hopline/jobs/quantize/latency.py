"""Measures the latency of a model and its narrow form, interleaved in one run.

Processor time of the calling thread: load of other processes affects neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from hopline.artifact import ModelSpec
from hopline.engine.answer import Answerer
from hopline.engine.model import Model
from hopline.engine.outputs import default_outputs
from hopline.errors import HoplineError
from hopline.graph import Graph
from hopline.jobs.quantize.operators import File
from hopline.jobs.quantize.record import Feeds
from hopline.jobs.quantize.report import Latency
from hopline.runtimes.onnx import CHUNK_ROWS, session
from hopline.types import IdArray, ScoreRequest

#: Rows of a call of the model, and nodes of a request.
SIZES = (1, 1024)

Clock = Callable[[], float]


def of_files(
    folders: tuple[Path, Path],
    files: Iterable[File],
    calls: dict[str, list[Feeds]],
    *,
    repeats: int = 15,
    clock: Clock = time.thread_time,
) -> tuple[Latency, ...]:
    """Measure all files of both forms in order, on recorded rows; larger calls in the engine's chunks.

    Files with padded blocks get as many recorded calls as together have the number of rows.
    """
    found = []
    for rows in SIZES:
        runs: list[list[Callable[[], object]]] = [[], []]
        for file in files:
            fed = _calls_of(calls.get(file.name, []), rows)
            for side, folder in enumerate(folders):
                run = session(folder / file.path)._sess.run
                runs[side] += [_bound(run, file.output, feeds) for feeds in fed]
        medians = _medians([_all(side) for side in runs], repeats if rows > 1 else 20 * repeats, clock)
        found.append(Latency(rows, *medians))
    return tuple(found)


def of_requests(
    folders: tuple[Path, Path],
    spec: ModelSpec,
    graph: Graph,
    nodes: IdArray,
    *,
    repeats: int = 15,
    clock: Clock = time.thread_time,
) -> tuple[Latency, ...]:
    """Measure whole requests: ids looked up, neighbours sampled, features gathered, all levels computed."""
    outputs = default_outputs(spec.task)
    sides = [Answerer(Model(folder, spec, graph), outputs, 0) for folder in folders]
    found = []
    for size in SIZES:
        requests = [_request(spec, graph, rows) for rows in _shares(nodes, size)]
        count = repeats if size > 1 else 20 * repeats
        medians = _medians([_asking(side, requests) for side in sides], count, clock)
        found.append(Latency(min(size, nodes.shape[0]), *medians))
    return tuple(found)


def _asking(side: Answerer, requests: list[ScoreRequest]) -> Callable[[], object]:
    at = 0

    def ask() -> None:
        nonlocal at
        (outcome,) = side.answer([requests[at % len(requests)]])
        at += 1
        if isinstance(outcome, HoplineError):
            raise outcome

    return ask


def _request(spec: ModelSpec, graph: Graph, rows: IdArray) -> ScoreRequest:
    head = spec.head
    nodes = graph.nodes[head.node_type].ids.external(rows)
    if head.kind == "node":
        return ScoreRequest(spec.name, nodes=_listed(nodes))
    other = graph.nodes[head.dst_node_type or head.node_type]
    partners = other.ids.external(rows[::-1] % other.num_nodes)
    return ScoreRequest(spec.name, pairs=(_listed(nodes), _listed(partners)))


def _listed(ids: object) -> list[int] | list[str]:
    return ids.tolist() if isinstance(ids, np.ndarray) else ids  # type: ignore[return-value]


def _shares(nodes: IdArray, size: int) -> list[IdArray]:
    """At most 64 disjoint shares of `size` nodes; a single smaller one if there are fewer nodes."""
    count = max(1, min(64, nodes.shape[0] // size))
    return [nodes[k * size : (k + 1) * size] for k in range(count)]


def _calls_of(calls: list[Feeds], rows: int) -> list[Feeds]:
    """Feeds with `rows` rows in total, none with more than the engine's chunk."""
    if not calls:
        return []
    if "positions" in " ".join(calls[0]) or any(v.dtype.kind in "bi" for v in calls[0].values()):
        found: list[Feeds] = []
        left = rows
        while left > 0:
            feeds = calls[len(found) % len(calls)]
            found.append(feeds)
            left -= max(next(v for v in feeds.values() if v.dtype.kind == "b").shape[0], 1)
        return found
    whole = {name: np.concatenate([feeds[name] for feeds in calls]) for name in calls[0]}
    have = next(iter(whole.values())).shape[0]
    chosen = np.arange(rows) % have
    parts = [chosen[a : a + CHUNK_ROWS] for a in range(0, rows, CHUNK_ROWS)]
    return [{name: np.ascontiguousarray(v[part]) for name, v in whole.items()} for part in parts]


def _bound(run: Callable[..., object], output: str, feeds: Feeds) -> Callable[[], object]:
    return lambda: run([output], feeds, None)


def _all(runs: list[Callable[[], object]]) -> Callable[[], object]:
    def call() -> None:
        for run in runs:
            run()

    return call


def _medians(sides: list[Callable[[], object]], repeats: int, clock: Clock) -> list[float]:
    """Median microseconds of each, taken in turns."""
    taken: list[list[float]] = [[] for _ in sides]
    for side in sides:
        side()
    for _ in range(repeats):
        for side, times in zip(sides, taken, strict=True):
            began = clock()
            side()
            times.append(clock() - began)
    return [1e6 * float(np.median(times)) for times in taken]
