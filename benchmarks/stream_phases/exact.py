"""After any mix of updates: online answers, a batch run, a fresh build: the same.

Edges come and go, features are set, nodes are added, in batches of any size; requests are answered in
between, so that caches hold rows which must not be used any more. The fresh build is of a plain list of
what is left.

    python -m benchmarks.stream_phases.exact < orders.json
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.stream_phases import worker
from benchmarks.stream_phases.place import EDGE, MODELS, NODE, PLACES, Live, Place
from benchmarks.stream_phases.updates import Updates
from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import Model, StateCachePlan
from hopline.graph import Graph
from hopline.graph.live.view import LiveView
from hopline.jobs.batch.npy import NpyFolder
from hopline.jobs.batch.run import BatchOptions, BatchRun
from hopline.memory.arena import Arena
from hopline.types import FloatArray, IdArray, ScoreRequest

_TABLE_BYTES = 1 << 28
_LARGEST = 5_000
#: Nodes that are asked for at the end, new ones among them; each request asks for so many.
_ASKED, _REQUEST = 20_000, 50
#: Largest difference from PyG, in float32, that counts as equal.
_TOLERANCE = 1e-4


class Kept:
    """A model on the live graph."""

    def __init__(self, place: Place, name: str, live: Live) -> None:
        self.folder = place.model(name)
        self.spec = read_spec(self.folder)
        self._view = live.view()
        plan = StateCachePlan(self.spec, self._view, _TABLE_BYTES, final=True)
        tables = plan.build(Arena(plan.num_bytes))
        self._online = Answerer(Model(self.folder, self.spec, self._view, tables), ("embedding",), 1)

    def ask(self, ids: IdArray) -> FloatArray:
        """Online answers, by caller's ids."""
        return answers(self._online, ids, self._view)

    def fresh(self, graph: Graph, ids: IdArray) -> FloatArray:
        """As `online`, for a model on another graph, without a state cache."""
        return answers(Answerer(Model(self.folder, self.spec, graph), ("embedding",), 1), ids)


def answers(answerer: Answerer, ids: IdArray, view: LiveView | None = None) -> FloatArray:
    """One row for each id."""
    found = []
    for a in range(0, len(ids), _REQUEST):
        request = ScoreRequest("", nodes=ids[a : a + _REQUEST].tolist())
        if view is None:
            (result,) = answerer.answer([request])
        else:
            with view:
                (result,) = answerer.answer([request])
        if isinstance(result, Exception):
            raise result
        found.append(result.outputs["embedding"].copy())
    return np.concatenate(found)


def batch(folder: Path, graph: Path, scratch: Path) -> FloatArray:
    """All rows, by a batch run."""
    out = scratch / "table"
    options = BatchOptions(outputs=("embedding",), restart=True)
    BatchRun(folder, graph, scratch / "run", options).run(lambda: NpyFolder(out))
    rows: FloatArray = np.load(out / "embedding.npy")
    return rows


def same(a: Any, b: Any) -> bool:
    """Bit for bit."""
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def same_graph(a: Graph, b: Graph) -> bool:
    """Lists, features and ids."""
    mine, theirs = a.edges[EDGE], b.edges[EDGE]
    count = a.nodes[NODE].num_nodes
    return (
        same(mine.indptr, theirs.indptr)
        and same(mine.indices, theirs.indices)
        and same(a.nodes[NODE].features, b.nodes[NODE].features)
        and same(a.nodes[NODE].ids.external(np.arange(count)), b.nodes[NODE].ids.external(np.arange(count)))
    )


def run(place: Place, scratch: Path, num_updates: int) -> dict[str, Any]:
    """All of it, in this process."""
    live = Live(place, scratch / "live")
    updates = Updates(place, live.graph, seed=3)
    rng = np.random.default_rng(4)
    kept = {name: Kept(place, name, live) for name in MODELS}
    sent = batches = num_applied = 0
    rejected: dict[str, int] = {}
    while sent < num_updates:
        size = min(num_updates - sent, int(np.exp(rng.uniform(0, np.log(_LARGEST)))))
        (applied,) = live.keeper.apply([updates.mixed(size)])
        for wrong in applied.rejected:
            rejected[wrong.code] = rejected.get(wrong.code, 0) + 1
        sent, batches, num_applied = sent + size, batches + 1, num_applied + applied.num_applied
        for each in kept.values():
            each.ask(rng.integers(0, place.num_nodes, _REQUEST))
    fresh = updates.final()
    with live.view() as view:
        snapshot = view.snapshot()
    snapshot.save(scratch / "snapshot")
    count = snapshot.nodes[NODE].num_nodes
    ids = snapshot.nodes[NODE].ids.external(np.arange(count))
    some = np.unique(np.concatenate([rng.integers(0, count, _ASKED), np.arange(place.num_nodes, count)]))
    checks = {"graph": same_graph(snapshot, fresh)}
    differences = {}
    for name, each in kept.items():
        online = each.ask(np.asarray(ids)[some])
        table = batch(each.folder, scratch / "snapshot", scratch)
        checks[f"{name}: online = fresh build"] = same(online, each.fresh(fresh, np.asarray(ids)[some]))
        checks[f"{name}: online = batch"] = same(online, table[some])
        differences[name] = float(np.abs(online - table[some]).max())
    from benchmarks.stream_phases.naive import forward

    edges = fresh.edges[EDGE]
    dst = np.repeat(np.arange(count), np.diff(edges.indptr))
    theirs = forward(
        place, np.array(fresh.nodes[NODE].features), (np.asarray(edges.indices, np.int64), dst)
    )
    differences["pyg"] = float(
        np.abs(theirs - batch(kept["whole"].folder, scratch / "snapshot", scratch)).max()
    )
    checks["whole: batch = PyG"] = differences["pyg"] <= _TOLERANCE
    live.close()
    return {
        "exact": all(checks.values()),
        "checks": checks,
        "max_abs_diff": differences,
        "updates": sent,
        "batches": batches,
        "applied": num_applied,
        "rejected": rejected,
        "nodes_compared": count,
        "nodes_asked": len(some),
    }


def main() -> None:
    """Entry of the process."""
    wanted = worker.orders()
    with tempfile.TemporaryDirectory(dir=wanted["scratch"]) as folder:
        worker.tell(run(PLACES[wanted["place"]], Path(folder), wanted["updates"]))


if __name__ == "__main__":
    main()
