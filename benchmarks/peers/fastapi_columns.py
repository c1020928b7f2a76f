"""FastAPI + pandas + scikit-learn + PyG: raw columns, as teams serve them by hand.

Known nodes have their features in memory, transformed once at the start. A new node is one row of a
DataFrame, which the fitted ColumnTransformer transforms in the request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from fastapi import FastAPI
from pydantic import BaseModel
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput

from benchmarks.columns_table import draw, transformer
from benchmarks.peers.fastapi_pyg import Answer, build, serve
from benchmarks.peers.pyg_model import Scorer, adjacency
from benchmarks.peers.served import arguments
from benchmarks.workload import FANOUTS


class NewNode(BaseModel):
    """A node that the graph does not have."""

    columns: dict[str, Any]
    neighbors: list[int]


class ColumnScorer(Scorer):
    """As `Scorer`, for nodes of raw columns."""

    def __init__(self, workload: Path, num_threads: int) -> None:
        """Load a workload folder; fits the preprocessing on its table, which is drawn again."""
        frame = draw(len(np.load(workload / "indptr.npy", mmap_mode="r")) - 1)
        self.dtypes = frame.dtypes
        self.transformer = transformer().fit(frame)
        super().__init__(workload, num_threads)
        self.one_hop = NeighborSampler(self.data, num_neighbors=[FANOUTS[1]])

    @torch.inference_mode()
    def score_new(self, node: NewNode) -> Any:
        """Answer of a new node, float32 [64]."""
        row = pd.DataFrame([node.columns]).astype(self.dtypes)
        new = torch.from_numpy(self.transformer.transform(row)).float()
        seeds = torch.as_tensor(list(dict.fromkeys(node.neighbors)))
        sample = self.one_hop.sample_from_nodes(NodeSamplerInput(input_id=None, node=seeds))
        x = torch.cat([new, self.features.index_select(0, sample.node)])
        count = len(seeds)
        sources = torch.cat([torch.arange(1, count + 1), sample.row + 1])
        targets = torch.cat([torch.zeros(count, dtype=torch.long), sample.col + 1])
        first, second = self.model.conv1, self.model.conv2
        hidden = first((x, x[: count + 1]), adjacency(sources, targets, count + 1, len(x))).relu_()
        own = adjacency(sources[:count], targets[:count], 1, count + 1)
        return second((hidden, hidden[:1]), own)[0].numpy()


def main() -> None:
    """Serve on loopback until SIGTERM."""
    args = arguments("FastAPI + pandas + scikit-learn + PyG").parse_args()
    scorer = ColumnScorer(args.workload, args.threads)
    app: FastAPI = build(scorer)

    @app.post("/unseen")
    async def unseen(node: NewNode) -> Answer:
        return Answer(output=scorer.score_new(node).tolist())

    serve(app, args.port)


if __name__ == "__main__":
    main()
