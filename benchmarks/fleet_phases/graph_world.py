"""A small graph and a model for it: for the phases with graph models."""

from __future__ import annotations

from itertools import pairwise, starmap
from pathlib import Path

import numpy as np

NUM_NODES, NUM_EDGES, NUM_FEATURES = 20_000, 200_000, 64
MODEL = "risk"


class World:
    """A graph folder and a repository.

    Args:
        root: of both.
    """

    def __init__(self, root: Path) -> None:
        import torch
        from torch_geometric.nn import SAGEConv

        from hopline.graph import Graph
        from hopline.packaging import package

        self.graph, self.repository = root / "graph", root / "models"
        rng = np.random.default_rng(7)
        # popular nodes are neighbours of many
        src = (NUM_NODES * rng.random(NUM_EDGES) ** 2).astype(np.int64)
        dst = rng.integers(0, NUM_NODES, NUM_EDGES)
        features = rng.standard_normal((NUM_NODES, NUM_FEATURES)).astype(np.float32)
        graph = Graph.from_edges([src, dst], features).save(self.graph)

        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                widths = [NUM_FEATURES, 64, 8]
                self.convs = torch.nn.ModuleList(starmap(SAGEConv, pairwise(widths)))

            def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
                for conv in self.convs[:-1]:
                    x = conv(x, edge_index).relu()
                found: torch.Tensor = self.convs[-1](x, edge_index)
                return found

        torch.manual_seed(7)
        package(
            Net().eval(),
            graph,
            self.repository,
            name=MODEL,
            version="1",
            fanouts=[10, 5],
            task="multiclass",
            check_nodes=20,
            progress=False,
        )
