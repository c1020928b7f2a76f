"""The graph that the phases change, the models that are asked, and a live folder to write.

169,343 nodes and 1.2 M edges (the size of ogbn-arxiv), 128 features, each end of an edge drawn from a power
law. A popular destination is not for that a popular source, as with papers that are cited. GraphSAGE 128 →
128 → 64 twice: with fanouts [10, 5], and with all neighbours. Built once, by a separate process that needs
torch, and stored next to the other benchmarks' workloads.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.workload import NUM_FEATURES, NUM_HIDDEN, NUM_OUTPUTS, cache_dir, draw_ends
from hopline.graph import Graph
from hopline.graph.live.home import LiveHome
from hopline.graph.live.keeper import GraphKeeper
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.plan import make_plan
from hopline.graph.live.view import LiveView
from hopline.graph.live.writer import LiveWriter
from hopline.types import IdArray

EDGE, NODE = "node__to__node", "node"
#: Model -> its fanouts.
MODELS = {"sampled": (10, 5), "whole": (-1, -1)}
#: Added nodes are numbered from here.
FIRST_NEW = 10_000_000
#: Levels of marks: own features and two layers.
_LEVELS = 3
_SEED = 20
_FORMAT = 1
_RANKS = "ranks.npy"


@dataclass(frozen=True)
class Place:
    """Folders of the setup.

    Attributes:
        num_isolated: nodes that no edge comes to; their answers change with their own features alone.
    """

    name: str
    num_nodes: int
    num_edges: int
    num_isolated: int = 64

    @property
    def folder(self) -> Path:
        """All of it."""
        return cache_dir() / f"{self.name}-{_SEED}-v{_FORMAT}"

    @property
    def graph(self) -> Path:
        """A graph folder."""
        return self.folder / "graph"

    @property
    def repository(self) -> Path:
        """Both models."""
        return self.folder / "models"

    def model(self, name: str) -> Path:
        """Folder of a model's only version."""
        return self.repository / name / "1"

    def ranks(self) -> IdArray:
        """Sources and destinations by popularity, most popular first: int64 [2, n]. The last
        `num_isolated` of all nodes are no destinations."""
        ranks: IdArray = np.load(self.folder / _RANKS)
        return ranks

    def isolated(self) -> IdArray:
        """Nodes that no edge comes to."""
        return np.arange(self.num_nodes - self.num_isolated, self.num_nodes)

    def ensure(self) -> Place:
        """Build it if it is missing."""
        if not self.folder.exists():
            command = [sys.executable, "-m", "benchmarks.stream_phases.place", self.name]
            subprocess.run(command, check=True, cwd=Path(__file__).resolve().parents[2])
        return self


MAIN = Place("stream", 169_343, 1_200_000)
SMALL = Place("stream-small", 5_000, 35_000)
PLACES = {place.name: place for place in (MAIN, SMALL)}


def draw_edges(rng: np.random.Generator, ranks: IdArray, size: int) -> tuple[IdArray, IdArray]:
    """Sources and destinations, int64 [size] each."""
    sources, destinations = ranks
    return draw_ends(rng, sources, size), draw_ends(rng, destinations[destinations >= 0], size)


class Live:
    """A live graph in this process: a real folder, a keeper, a view.

    Args:
        folder: of the changes; made here.
    """

    def __init__(self, place: Place, folder: Path, *, spare_edges: int = 4_000_000) -> None:
        graph = Graph.open(place.graph)
        self.graph = graph
        self.home = LiveHome.open(folder, graph, verify=False)
        plan = make_plan(
            self.home.start.graph,
            lineage=graph.version,
            sequence=self.home.start.state.sequence,
            spare_nodes=20_000,
            spare_edges=spare_edges,
            num_levels=_LEVELS,
        )
        self._ids = {name: nodes.ids for name, nodes in self.home.start.graph.nodes.items()}
        self.memory = LiveMemory.create(plan)
        self.writer = LiveWriter(self.memory, graph.schema, self._ids, _now_ms)
        self.keeper = GraphKeeper(self.home, self.writer, self.view, _now_ms)
        self.keeper.recover()

    def view(self) -> LiveView:
        """For one more reader."""
        return LiveView(self.memory, self.graph.schema, self._ids, self.graph.path)

    def close(self) -> None:
        """Close the live folder."""
        self.keeper.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def build(place: Place, folder: Path) -> None:
    """Draw the graph and package the models. Needs torch."""
    import torch
    from torch_geometric.nn import GraphSAGE

    from hopline import package

    rng = np.random.default_rng(_SEED)
    ranks = np.stack([rng.permutation(place.num_nodes), rng.permutation(place.num_nodes)])
    ranks[1][ranks[1] >= place.num_nodes - place.num_isolated] = -1
    edges = draw_edges(rng, ranks, place.num_edges)
    features = rng.standard_normal((place.num_nodes, NUM_FEATURES), np.float32)
    graph = Graph.from_edges(edges, features)
    folder.mkdir(parents=True)
    np.save(folder / _RANKS, ranks)
    graph.save(folder / "graph")
    torch.manual_seed(_SEED)
    model = GraphSAGE(NUM_FEATURES, NUM_HIDDEN, 2, NUM_OUTPUTS).eval()
    torch.save(model.state_dict(), folder / "sage.pt")
    for name, fanouts in MODELS.items():
        package(
            model,
            graph,
            folder / "models",
            name=name,
            fanouts=list(fanouts),
            task="embedding",
            check_nodes=100,
        )


def main() -> None:
    """Build one that is missing."""
    place = PLACES[sys.argv[1]]
    draft = place.folder.with_name(place.folder.name + ".tmp")
    shutil.rmtree(draft, ignore_errors=True)
    build(place, draft)
    draft.rename(place.folder)


if __name__ == "__main__":
    main()
