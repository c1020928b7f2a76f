"""Compressed adjacency against the plain arrays of the same graph: size, sampling, whole requests.

The serving benchmark's graph (1 M nodes, 20 M edges; `quick`: 50 k and 1 M) with weights drawn for its
edges. `size_ratio` is against int64 indices and float32 weights, 12 bytes an edge; what is compressed
counts whole, with its indptr, offsets, heads, padding and the sums of weights. `size_ratio_today` is
against the arrays that Hopline has of the plain graph. Sampling is fanouts [10, 5] from 1,024 uniform
seeds; a request is the serving benchmark's model from 1,024 seeds and from one, nothing kept between
them. One thread; both sides in huge pages, as a server of one worker holds them. They take turns call by
call, each first every other time, and ratios are of medians.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.hopline_server import prepare
from benchmarks.workload import FANOUTS, FULL, SMALL, ensure
from hopline.artifact import read_spec
from hopline.engine.model import Model
from hopline.graph import Adjacency, Graph, codec, csc
from hopline.graph.residency import in_huge_pages
from hopline.sampling import BlockBuffers, Sampler, layer_key
from hopline.types import IdArray

SEEDS = 1024


class Side:
    """One form of the graph: samples and answers."""

    def __init__(self, graph: Graph, model: Model) -> None:
        self.graph, self.model = graph, model
        self._buffers = [BlockBuffers() for _ in FANOUTS]
        self._samplers = {mode: self._of(mode) for mode in ("uniform", "weighted")}

    def _of(self, mode: str) -> list[Sampler]:
        edges = self.graph.edge()
        return [
            Sampler(edges, fanout, mode, layer_key(0, layer, edges.key))
            for layer, fanout in enumerate(FANOUTS, 1)
        ]

    def sample(self, seeds: IdArray, mode: str = "uniform") -> tuple[float, IdArray]:
        """Sample both layers below `seeds`; returns (seconds, neighbours of the lower one)."""
        nodes, seconds = seeds, 0.0
        for sampler, buffers in zip(self._samplers[mode], self._buffers, strict=True):
            started = time.perf_counter()
            block = sampler.sample(nodes, buffers)
            seconds += time.perf_counter() - started
            nodes = np.concatenate([nodes, block.neighbors])
        return seconds, block.neighbors

    def answer(self, seeds: IdArray) -> tuple[float, Any]:
        """Answer one request; returns (seconds, states)."""
        started = time.perf_counter()
        states = self.model.final_states({"node": seeds})["node"]
        return time.perf_counter() - started, states


def measure(quick: bool) -> dict[str, Any]:
    """Compress the graph, compare what is sampled and answered, and time both forms.

    Returns: {"adjacency": figures}.
    """
    serve_dir = prepare(ensure(SMALL if quick else FULL))
    graph = Graph.open(serve_dir / "graph")
    edges = _weighted(graph.edge())
    started = time.perf_counter()
    packed = codec.compress(edges, graph.num_nodes)
    seconds = time.perf_counter() - started
    stored, before = (sum(a.nbytes for a in codec.stored(e).values()) for e in (packed, edges))
    folder = serve_dir / "repository" / "sage" / "1"
    plain_side, packed_side = (_side(graph, form, folder) for form in (_plain(packed), packed))

    rounds = 30 if quick else 120
    figures: dict[str, Any] = {
        "size_ratio": stored / (12 * edges.num_edges),
        "bytes_per_edge": stored / edges.num_edges,
        "size_ratio_today": stored / before,
        "size_ratio_without_weights": (packed.indptr.nbytes + packed.indices.nbytes)
        / (8 * edges.num_edges),
        "compress_s": seconds,
    }
    turns: dict[str, tuple[Callable[[Side, IdArray], Any], int, int]] = {
        "sampling": (lambda side, seeds: side.sample(seeds), SEEDS, rounds),
        "weighted_sampling": (lambda side, seeds: side.sample(seeds, "weighted"), SEEDS, rounds // 4),
        "request": (lambda side, seeds: side.answer(seeds), SEEDS, rounds // 6),
        "request_of_one": (lambda side, seeds: side.answer(seeds), 1, 10 * rounds),
    }
    for name, (call, count, calls) in turns.items():
        plain_s, packed_s = _in_turns(plain_side, packed_side, call, graph.num_nodes, count, calls)
        figures[f"{name}_time_ratio"] = packed_s / plain_s
        figures[f"{name}_us"] = {"plain": plain_s * 1e6, "compressed": packed_s * 1e6}
    return {"adjacency": figures}


def _plain(packed: Adjacency) -> Adjacency:
    """The same edges in plain arrays; weights stay rounded."""
    indptr, weight = np.asarray(packed.indptr, np.int64), np.asarray(packed.weight)
    arrays: Any = {"indptr": indptr, "indices": np.asarray(packed.indices), "weight": weight}
    return dataclasses.replace(packed, **arrays, cumweight=csc.running_weights(indptr, weight))


def _weighted(edges: Adjacency) -> Adjacency:
    weight = np.random.default_rng(3).random(edges.num_edges, np.float32)
    return dataclasses.replace(edges, weight=weight, cumweight=csc.running_weights(edges.indptr, weight))


def _side(graph: Graph, edges: Adjacency, folder: Any) -> Side:
    # Features are mapped for both: a copy of each would take a gigabyte.
    held = in_huge_pages(_with(graph, edges), features=False)
    return Side(held, Model(folder, read_spec(folder), held))


def _with(graph: Graph, edges: Adjacency) -> Graph:
    other = Graph(graph.schema, graph.nodes, {edges.key: edges})
    other.__dict__["version"] = graph.version  # hashing it takes seconds and says nothing here
    return other


def _in_turns(
    plain: Side, packed: Side, call: Callable[[Side, IdArray], Any], num_nodes: int, count: int, calls: int
) -> tuple[float, float]:
    """Median seconds of each side's calls. Raises: AssertionError: they differ in what they return."""
    rng = np.random.default_rng(1)
    seconds: dict[Side, list[float]] = {plain: [], packed: []}
    for turn in range(calls + 3):
        # Separate seeds for each side: the second would find in cache what the first has read.
        for side in (plain, packed) if turn % 2 else (packed, plain):
            spent, _ = call(side, np.unique(rng.integers(0, num_nodes, count)))
            if turn >= 3:
                seconds[side].append(spent)
        if turn < 3:
            seeds = np.unique(rng.integers(0, num_nodes, count))
            expected = np.array(call(plain, seeds)[1])
            np.testing.assert_array_equal(call(packed, seeds)[1], expected)
    return float(np.median(seconds[plain])), float(np.median(seconds[packed]))


if __name__ == "__main__":
    import json
    import sys

    print(json.dumps(measure("--quick" in sys.argv), indent=1))
