"""A small graph whose nodes have a table with lists, and a packaged model that reads it."""

from abc import ABC, abstractmethod

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from pyarrow import parquet
from sklearn.compose import ColumnTransformer
from torch_geometric.nn import SAGEConv

import hopline
from hopline import Graph
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.graph import EdgeFile, NodeFile

COUNT = 40


def edges():
    return np.random.default_rng(7).integers(0, COUNT, (2, 200))


def written(folder, nodes, *columns):
    """The graph of a Parquet file of nodes, a table, and one of edges; `columns`: as in `NodeFile`."""
    parquet.write_table(nodes, folder / "nodes.parquet")
    src, dst = ([f"n{each}" for each in side] for side in edges())
    parquet.write_table(pa.table({"src": src, "dst": dst}), folder / "edges.parquet")
    node = NodeFile(folder / "nodes.parquet", "id", columns=["*", *columns])
    return Graph.from_parquet({"node": node}, {("node", "to", "node"): EdgeFile(folder / "edges.parquet")})


class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = SAGEConv(width, 8), torch.nn.Linear(8, 2)

    def forward(self, x, edge_index):
        return self.head(self.conv(x, edge_index).relu())


class ListWorld(ABC):
    """A packaged model over a table with lists.

    Args:
        frame: rows of the graph. graph: that was written. parts: of its preprocessing.
    """

    def __init__(self, folder, frame, graph, parts):
        self.frame, self.graph = frame, graph.save(folder / "graph")
        self.fitted = ColumnTransformer(parts).fit(self.graph.frame("node"))
        self.module = Net(self.x(self.frame).shape[1]).eval()
        self.report = hopline.package(
            self.module, self.graph, folder / "models", name="risk", fanouts=[-1], task="multiclass",
            preprocess={"node": self.fitted},
        )  # fmt: skip

    @abstractmethod
    def x(self, frame):
        """Features of rows, without the code that is tested."""

    def answerer(self, graph=None):
        model = load_model(self.report.path, self.report.spec, graph or self.graph)
        return Answerer(model, ("logits",), 999)

    def expected(self, frame, neighbors):
        """Of PyG: new rows, each with its neighbours."""
        x = torch.tensor(self.x(pd.concat([self.frame, frame]))).float()
        more = [(one, COUNT + row) for row, each in enumerate(neighbors) for one in each]
        ends = np.concatenate([edges(), np.array(more, np.int64).reshape(-1, 2).T], axis=1)
        with torch.no_grad():
            return self.module(x, torch.tensor(ends)).numpy()[COUNT:]
