"""The usual way, on one core: PyG computes rows again after each batch of updates, all or those affected.

`affected` is what a careful programmer would write: destinations of changed edges, then the nodes that they
reach, and only their rows, level by level, from stored rows below. All neighbours: what PyG's sampler draws
is another choice each time.

    python -m benchmarks.stream_phases.naive < orders.json
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import torch
from torch_geometric.nn import GraphSAGE

from benchmarks.stream_phases import worker
from benchmarks.stream_phases.place import EDGE, NODE, PLACES, Place
from benchmarks.stream_phases.updates import Updates
from benchmarks.workload import NUM_FEATURES, NUM_HIDDEN, NUM_OUTPUTS
from hopline.graph import Graph
from hopline.graph.live.changes import EdgeChanges
from hopline.types import FloatArray, IdArray


class Naive:
    """Rows of all levels and a list of edges, kept up to date."""

    def __init__(self, place: Place, graph: Graph) -> None:
        self._model = load(place)
        edges = graph.edges[EDGE]
        self._src = torch.from_numpy(np.asarray(edges.indices, np.int64))
        self._dst = torch.from_numpy(np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr)))
        x = torch.from_numpy(np.array(graph.nodes[NODE].features))
        self._rows = [x, *(torch.zeros(len(x), dim) for dim in (NUM_HIDDEN, NUM_OUTPUTS))]
        self.compute_all()

    def change(self, changes: EdgeChanges) -> torch.Tensor:
        """Edges come and go; returns whose lists changed."""
        src, dst = (torch.from_numpy(np.asarray(ends, np.int64)) for ends in (changes.src, changes.dst))
        remove = torch.from_numpy(changes.remove)
        gone = (src[remove] << 32) | dst[remove]
        left = ~torch.isin((self._src << 32) | self._dst, gone)
        self._src = torch.cat([self._src[left], src[~remove]])
        self._dst = torch.cat([self._dst[left], dst[~remove]])
        return dst.unique()

    def compute_all(self) -> None:
        """Every row of every level."""
        edges = torch.stack([self._src, self._dst])
        for level, conv in enumerate(self._model.convs, 1):
            out = conv(self._rows[level - 1], edges)
            self._rows[level] = out.relu() if level == 1 else out

    def compute_affected(self, changed: torch.Tensor) -> None:
        """Rows that a change of these lists may reach."""
        num_nodes = len(self._rows[0])
        reached = torch.zeros(num_nodes, dtype=torch.bool)
        place_of = torch.empty(num_nodes, dtype=torch.int64)
        for level, conv in enumerate(self._model.convs, 1):
            if level > 1:
                changed = torch.cat([changed, self._dst[reached[self._src]]]).unique()
            reached[:] = False
            reached[changed] = True
            place_of[changed] = torch.arange(len(changed))
            wanted = reached[self._dst]
            edges = torch.stack([self._src[wanted], place_of[self._dst[wanted]]])
            below = self._rows[level - 1]
            out = conv((below, below[changed]), edges, size=(num_nodes, len(changed)))
            self._rows[level][changed] = out.relu() if level == 1 else out


def load(place: Place) -> GraphSAGE:
    """The model that was packaged."""
    model = GraphSAGE(NUM_FEATURES, NUM_HIDDEN, 2, NUM_OUTPUTS).eval()
    model.load_state_dict(torch.load(place.folder / "sage.pt"))
    return model


def forward(place: Place, features: FloatArray, edges: tuple[IdArray, IdArray]) -> FloatArray:
    """PyG's rows of all nodes."""
    with torch.inference_mode():
        rows: FloatArray = load(place)(
            torch.from_numpy(features), torch.from_numpy(np.stack(edges))
        ).numpy()
    return rows


def run(place: Place, sizes: list[int], batches: int) -> dict[str, Any]:
    """Updates a second of both ways by batch size; computing all rows takes long, and is done once."""
    graph = Graph.open(place.graph)
    naive, updates = Naive(place, graph), Updates(place, graph, seed=1)
    found: dict[str, Any] = {"affected": {}, "all": {}}
    for size in sizes:
        for way, count in (("affected", batches), ("all", 1)):
            wall_s = cpu_s = 0.0
            for _ in range(count):
                changes = updates.edges(size, ids=False).edges[EDGE]
                wall, cpu = time.perf_counter(), time.process_time()
                changed = naive.change(changes)
                if way == "all":
                    naive.compute_all()
                else:
                    naive.compute_affected(changed)
                wall_s, cpu_s = wall_s + time.perf_counter() - wall, cpu_s + time.process_time() - cpu
            found[way][size] = {
                "updates_per_s": round(count * size / wall_s),
                "updates_per_s_cpu": round(count * size / cpu_s),
            }
    return found


def main() -> None:
    """Entry of the process."""
    wanted = worker.orders()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    with torch.inference_mode():
        worker.tell(run(PLACES[wanted["place"]], wanted["sizes"], wanted["batches"]))


if __name__ == "__main__":
    main()
