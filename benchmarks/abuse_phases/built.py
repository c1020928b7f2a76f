"""Models of the attacked server: a GNN of three layers on a graph of six edge types, a tabular model.

Run by the interpreter that is attacked, in a separate process: `python built.py FOLDER`. Knows Hopline's
packaging and nothing of this folder, so that another checkout's interpreter can run it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

NUM_NODES, NUM_EDGES, DIM, NUM_EDGE_TYPES = 100_000, 400_000, 16, 6
NODE_TYPE = "account"
#: One seed is predicted to read about 167,000 rows at most: 90 · 60 · 30.
FANOUTS = (15, 10, 5)


def build(folder: Path) -> None:
    """Write `<folder>/graph` and `<folder>/models`."""
    import pandas as pd
    import torch
    from sklearn.linear_model import LogisticRegression
    from torch_geometric.nn import HeteroConv, SAGEConv

    from hopline import package, package_tabular
    from hopline.graph import EdgeTable, Graph, NodeTable

    rng = np.random.default_rng(28)
    relations = [(NODE_TYPE, f"pays{number}", NODE_TYPE) for number in range(NUM_EDGE_TYPES)]
    graph = Graph.from_tables(
        {NODE_TYPE: NodeTable(rng.standard_normal((NUM_NODES, DIM)))},
        {key: EdgeTable(tuple(rng.integers(0, NUM_NODES, (2, NUM_EDGES)))) for key in relations},
    )
    graph.save(folder / "graph")

    class Risk(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [HeteroConv({key: SAGEConv((DIM, DIM), DIM) for key in relations}) for _ in FANOUTS]
            self.layers = torch.nn.ModuleList(layers)
            self.head = torch.nn.Linear(DIM, 2)

        def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
            for layer in self.layers:
                x_dict = {name: x.relu() for name, x in layer(x_dict, edge_index_dict).items()}
            return self.head(x_dict[NODE_TYPE])

    torch.manual_seed(28)
    models = folder / "models"
    package(Risk().eval(), graph, models, name="risk", fanouts=list(FANOUTS), task="multiclass")
    rows = pd.DataFrame({"amount": rng.uniform(0, 100, 200), "age": rng.integers(18, 80, 200)})
    package_tabular(LogisticRegression().fit(rows, rows.amount > 50), rows, models, name="fraud")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
