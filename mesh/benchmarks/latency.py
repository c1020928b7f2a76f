"""The whole step of the detector after the query, compared with PyG's encoder alone.

Ours: `Tagae.step` on a snapshot: read the interval, build the graph, encode, attend, decode, judge. The
conditions are those of the watch. The model's second thread is woken when the answers are read, and half a
millisecond of other work represents the conversion of the answers to a snapshot. Then the step runs on the
same thread if the previous step took less than 5 ms, otherwise on a separate one. The model has the size
that the source document names (2 layers, 128 = 4 heads of 32); its weights are random, which takes as long
as trained ones. PyG: two `GATv2Conv` of that size, eager, in inference mode, on existing tensors, with one
or two threads, whichever is faster; it builds no graph and decodes nothing. Its `share_weights` equals the
model's `shared`.

Both alternate in rounds of eight steps, on the same seeded graphs: power-law in-degrees, all values of all
services and call paths new in each step, one call path in five hundred replaced in one step of ten. Before
each round both are idle for 10 ms, so that PyG's threads fall asleep, and then do 10 ms of other work, as
the watch reads answers before a step: a processor that was idle is slow for some milliseconds. Results are
medians and 99th percentiles; `ratio` is the ratio of the medians, `ratio_p99` that of the 99th percentiles.
`encoder_p50_ms` is the model's share of a step, `memory_bytes` the memory of the detector's state and
buffers. `first_p50_ms` and `pyg_first_p50_ms` refer to the first step of each round, when the caches hold
other data. The update of the embeddings after one event is timed as well.
"""

from __future__ import annotations

import math
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from hopline_mesh.changes import Context
from hopline_mesh.incident import Verdict
from hopline_mesh.model.encoder import Encoder
from hopline_mesh.model.events import LiveEmbeddings
from hopline_mesh.model.weights import Weights
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Snapshot
from hopline_mesh.tagae import Tagae, TagaeSettings, expect
from hopline_mesh.watch.judge import QUICK_S

SIZES = ((100, 400), (250, 1200), (500, 2000), (500, 3000), (1000, 8000), (2000, 20_000), (20_000, 200_000))
#: Number of nodes from which PyG is timed in few rounds only, because a pass takes a second.
_SELDOM = 10_000
_INTERVAL_S = 15.0
_LEARNT = 120
#: Idle time between rounds: OpenMP's threads keep spinning for a while after PyG's pass and would slow
#: ours.
_REST_S = 0.01
#: Other work before a round.
_WORK_S = 0.01
#: Other work between the last answer and a step; the conversion of three services to a snapshot takes
#: longer.
_MAKING_S = 0.0005
#: Steps per round.
_TURN = 8


def edges_of(n: int, e: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Distinct call paths with power-law in-degrees, in random order: int32 [e] callers and callees."""
    popular = (np.arange(n) + 1.0) ** -0.6
    keys = np.zeros(0, np.int64)
    while len(keys) < e:
        callees = rng.choice(n, e, p=popular / popular.sum())
        callers = rng.integers(0, n, e)
        keys = np.unique(np.concatenate([keys, (callers * n + callees)[callers != callees]]))
    keys = rng.permutation(keys)[:e]
    return (keys // n).astype(np.int32), (keys % n).astype(np.int32)


class Stream:
    """Snapshots of a mesh whose values all change in each step, and whose call paths change sometimes."""

    def __init__(self, n: int, e: int, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._schema = Schema()
        self._roster = Roster(f"space{i % 20}/service{i}" for i in range(n))
        self._nodes = np.arange(n, dtype=np.int32)
        self._sources, self._targets = edges_of(n, e, self._rng)
        self._usual = self._rng.lognormal(2, 1, (n, len(self._schema.node_features)))
        self._usual_edges = self._rng.lognormal(1, 1, (e, len(self._schema.edge_features)))
        self._time_s = 1_700_000_000.0
        self._count = 0

    @property
    def num_nodes(self) -> int:
        """Services."""
        return len(self._nodes)

    def __next__(self) -> Snapshot:
        self._time_s += _INTERVAL_S
        self._count += 1
        if self._count % 10 == 0:
            self._replace()
        return Snapshot(
            self._time_s,
            self._schema,
            self._roster,
            self._nodes,
            self._noisy(self._usual, self._schema.node_features),
            self._sources,
            self._targets,
            self._noisy(self._usual_edges, self._schema.edge_features),
        )

    def _noisy(self, usual: np.ndarray, columns: tuple[str, ...]) -> np.ndarray:
        found = usual * self._rng.normal(1.0, 0.03, usual.shape)
        for place, column in enumerate(columns):
            if column.endswith("_share"):
                found[:, place] = 0.001 * self._rng.random(len(usual))
        return np.abs(found).astype(np.float32)

    def _replace(self) -> None:
        """One call path in five hundred goes to another callee."""
        n, e = len(self._nodes), len(self._sources)
        taken = set((self._sources.astype(np.int64) * n + self._targets).tolist())
        targets = self._targets.copy()
        for k in self._rng.choice(e, max(1, e // 500), replace=False):
            source, target = int(self._sources[k]), int(self._rng.integers(n))
            if target != source and source * n + target not in taken:
                taken.add(source * n + target)
                targets[k] = target
        self._targets = targets


class PyG:
    """Two layers of PyG's GATv2, with the faster number of threads."""

    def __init__(self, d_in: int, shared: bool) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch
            from torch_geometric.nn import GATv2Conv

        torch.manual_seed(0)
        self._torch = torch
        sizes: dict[str, Any] = {"heads": 4, "add_self_loops": False, "share_weights": shared}
        self._first = GATv2Conv(d_in, 32, **sizes).eval()
        self._second = GATv2Conv(128, 32, **sizes).eval()
        self._d_in = d_in

    def seconds(self, snapshot: Snapshot) -> float:
        """One pass."""
        torch = self._torch
        x = torch.randn(len(snapshot.nodes), self._d_in)
        ends = torch.from_numpy(np.stack([snapshot.edge_src, snapshot.edge_dst]).astype(np.int64))
        with torch.inference_mode():
            began = time.perf_counter()
            self._second(torch.relu(self._first(x, ends)), ends)
            return time.perf_counter() - began

    def choose(self, snapshot: Snapshot, passes: int) -> int:
        """Select the faster number of threads; returns it."""
        medians = {}
        for threads in (1, 2):
            self._torch.set_num_threads(threads)
            medians[threads] = float(np.median([self.seconds(snapshot) for _ in range(passes)]))
        best = min(medians, key=lambda threads: medians[threads])
        self._torch.set_num_threads(best)
        return best


def detector(stream: Stream) -> Tagae:
    """A detector after a short training, with a model of that size whose expectations are ignored."""
    tagae = Tagae(TagaeSettings(model="untrained"))
    learnt = _LEARNT if stream.num_nodes < _SELDOM else _LEARNT // 3
    tagae.fit([next(stream) for _ in range(learnt)], [Context()] * learnt)
    shape = expect.shape_for(tagae._nodes, tagae._edges, hidden=128, heads=4, d_out=32)
    tagae._expectation = expect.Expectation(Weights.initial(shape))
    for table in tagae._tables:
        table.gain[:] = 0.0  # wrong expectations of random weights must not make every step an incident
    return tagae


def rest() -> None:
    """Idle time and other work before each round."""
    time.sleep(_REST_S)
    work(_WORK_S)


def work(seconds: float) -> None:
    """Unrelated work on this processor."""
    numbers = np.random.default_rng(0).random(1000)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        np.sort(numbers)


def judged(
    thread: ThreadPoolExecutor, tagae: Tagae, snapshot: Snapshot, last_s: float
) -> tuple[Verdict, float]:
    """One step, run as in the watch; see `hopline_mesh.watch.judge.Judge.is_quick`.

    Args:
        last_s: duration of the previous step in seconds.

    Returns: the verdict, and the duration of the step in seconds.
    """
    tagae.rouse()
    work(_MAKING_S)
    if last_s < QUICK_S:
        return _timed(tagae, snapshot)
    return thread.submit(_timed, tagae, snapshot).result()


def _timed(tagae: Tagae, snapshot: Snapshot) -> tuple[Verdict, float]:
    began = time.perf_counter()
    verdict = tagae.step(snapshot, Context())
    return verdict, time.perf_counter() - began


def _ms(seconds: list[float], percentile: float) -> float:
    return round(1e3 * float(np.percentile(seconds, percentile)), 3)


def one_size(n: int, e: int, steps: int) -> dict[str, Any]:
    """Results for one size of mesh."""
    stream = Stream(n, e)
    tagae = detector(stream)
    expectation = tagae._expectation
    assert expectation is not None
    shape = expectation.weights.shape
    pyg = PyG(shape.d_in + shape.d_temporal, shape.shared)
    seldom = _TURN if n >= _SELDOM else 1
    threads = pyg.choose(next(stream), 2 if n >= _SELDOM else 7)
    ours: list[float] = []
    theirs: list[float] = []
    encoder: list[float] = []
    first: list[float] = []
    their_first: list[float] = []
    anomalous, took = 0, math.inf
    thread = ThreadPoolExecutor(1)
    x, h = np.ones((n, shape.d_in), np.float32), np.ones((n, shape.d_temporal), np.float32)
    edge, g = np.ones((e, shape.d_edge), np.float32), np.ones((e, shape.d_edge_temporal), np.float32)
    for turn in range(-1, -(-steps // _TURN)):
        snapshots = [next(stream) for _ in range(_TURN)]
        rest()
        for snapshot in snapshots:
            verdict, took = judged(thread, tagae, snapshot, took)
            if turn >= 0:
                ours.append(took)
                anomalous += verdict.state == "anomalous"
                first += [took] if snapshot is snapshots[0] else []
        for _ in snapshots:
            began = time.perf_counter()
            expectation.encoder.reconstruct(expectation.graph, x, h, edge, g)
            encoder.append(time.perf_counter() - began)
        rest()
        theirs += (turn_of_theirs := [pyg.seconds(each) for each in snapshots[: _TURN // seldom]])
        their_first.append(turn_of_theirs[0])
    thread.shutdown()
    computing = expectation.encoder
    assert isinstance(computing, Encoder)  # whole, on the processor
    kept = sum(array.nbytes for array in tagae.export()[1].values())
    found = {
        "p50_ms": _ms(ours, 50),
        "p99_ms": _ms(ours, 99),
        "pyg_p50_ms": _ms(theirs, 50),
        "pyg_p99_ms": _ms(theirs, 99),
        "pyg_threads": threads,
        "ratio": round(float(np.median(ours) / np.median(theirs)), 3),
        "ratio_p99": round(float(np.percentile(ours, 99) / np.percentile(theirs, 99)), 3),
        "encoder_p50_ms": _ms(encoder, 50),
        "first_p50_ms": _ms(first, 50),
        "pyg_first_p50_ms": _ms(their_first, 50),
        "anomalous_steps": round(anomalous / len(ours), 3),
        "memory_bytes": kept + computing.num_bytes,
    }
    return found | ({} if n != 2000 else {"events": events(computing, stream, 40 * steps)})


def events(encoder: Encoder, stream: Stream, count: int) -> dict[str, Any]:
    """Microseconds from one event to updated embeddings."""
    snapshot, shape, rng = next(stream), encoder.shape, np.random.default_rng(0)
    n, e = len(snapshot.nodes), len(snapshot.edge_src)
    x, h, edge = (
        rng.normal(size=size).astype(np.float32)
        for size in ((n, shape.d_in), (n, shape.d_temporal), (e, shape.d_edge))
    )
    live = LiveEmbeddings(encoder.weights)
    live.reset(snapshot.edge_src, snapshot.edge_dst, x, h, edge)
    found: dict[str, Any] = {}
    for what in ("metric", "edge_metric", "edge_comes", "edge_goes"):
        taken = []
        for _ in range(count // 4):
            node, other, path = (
                int(rng.integers(n)),
                int(rng.integers(n)),
                int(rng.integers(live.num_edges)),
            )
            row = edge[int(rng.integers(e))]
            began = time.perf_counter()
            if what == "metric":
                live.set_node(node, x[other])
            elif what == "edge_metric":
                live.set_edge(path, row)
            elif what == "edge_comes":
                live.add_edge(node, other, row)
            else:
                live.remove_edge(path)
            taken.append(time.perf_counter() - began)
        found[what] = {"p50_us": round(1e3 * _ms(taken, 50)), "p99_us": round(1e3 * _ms(taken, 99))}
    return found


def measure(quick: bool) -> dict[str, Any]:
    """Returns: `latency`, by "nodes/edges"."""
    found = {}
    for n, e in SIZES:
        steps = (60 if quick else 400) if n < _SELDOM else (24 if quick else 120)
        found[f"{n}/{e}"] = one_size(n, e, steps)
    return {"latency": found}
