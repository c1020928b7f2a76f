"""Default model of every peer: PyG's sampler, which stays open, and a two-layer GraphSAGE.

A request costs one `sample_from_nodes` over the union of its seeds, one gather
and one forward pass; nothing is built per request.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput
from torch_sparse import SparseTensor

# pyg-lib, which PyG would rather sample with, is not on PyPI; torch-sparse is.
warnings.filterwarnings("ignore", message=".*without a 'pyg-lib' installation.*")
# torch-sparse hands its matrices to torch's CSR kernels, which torch calls beta, once per process.
warnings.filterwarnings("ignore", message=".*(Sparse CSR tensor|Sparse invariant).*")


def adjacency(row: Tensor, col: Tensor, num_dst: int, num_src: int) -> SparseTensor:
    """Sampled edges, sorted by destination, in the form for which SAGEConv has a fused path.

    That path multiplies sparse matrices: no row per edge is written.
    """
    size = (num_dst, num_src)
    return SparseTensor(row=col, col=row, sparse_sizes=size, is_sorted=True, trust_data=True)


class Sage(torch.nn.Module):
    """SAGEConv(128, 128) → ReLU → SAGEConv(128, 64), trimmed to what the seeds need."""

    def __init__(self, dim_in: int, dim_hidden: int, dim_out: int) -> None:
        super().__init__()
        self.conv1 = SAGEConv(dim_in, dim_hidden)
        self.conv2 = SAGEConv(dim_hidden, dim_out)

    def forward(self, x: Tensor, row: Tensor, col: Tensor, num_seeds: int) -> Tensor:
        """Compute the seeds' outputs from a sampled two-hop subgraph.

        PyG's `trim_to_layer` needs counts that only pyg-lib's sampler returns;
        its effect follows from the order in which torch-sparse samples: nodes
        hop by hop from the seeds, edges by ascending destination.

        Args:
            x: float32 [num_nodes, dim_in], the seeds' rows first.
            row, col: int64 [num_edges], source and destination positions in x.
        Returns: float32 [num_seeds, dim_out].
        """
        num_hop1_edges = int(torch.searchsorted(col, num_seeds))
        num_hidden = int(col[-1]) + 1 if len(col) else num_seeds
        if num_hop1_edges:
            num_hidden = max(num_hidden, int(row[:num_hop1_edges].max()) + 1)
        num_hidden = max(num_hidden, num_seeds)
        adj1 = adjacency(row, col, num_hidden, len(x))
        h = self.conv1((x, x[:num_hidden]), adj1).relu_()
        adj2 = adjacency(row[:num_hop1_edges], col[:num_hop1_edges], num_seeds, num_hidden)
        out: Tensor = self.conv2((h, h[:num_seeds]), adj2)
        return out


class Scorer:
    """The graph, the features and the model in memory, as `served.Scores`."""

    def __init__(self, workload: Path, num_threads: int) -> None:
        """Load a workload folder.

        Args:
            num_threads: torch's; one is best here, as wrk and the front end need the other core.
        """
        torch.set_num_threads(num_threads)
        facts = json.loads((workload / "workload.json").read_text())
        self.features = torch.from_numpy(np.load(workload / "features.npy"))
        num_nodes = len(self.features)
        adj_t = SparseTensor(
            rowptr=torch.from_numpy(np.load(workload / "indptr.npy")),
            col=torch.from_numpy(np.load(workload / "indices.npy")),
            sparse_sizes=(num_nodes, num_nodes),
            is_sorted=True,
            trust_data=True,
        )
        self.data = Data(adj_t=adj_t, num_nodes=num_nodes)
        self.sampler = NeighborSampler(self.data, num_neighbors=list(facts["fanouts"]))
        self.num_outputs = facts["dims"][-1]
        self.model = Sage(*facts["dims"]).eval()
        self.model.load_state_dict(
            {name: torch.from_numpy(np.load(workload / f"{name}.npy")) for name in self.model.state_dict()}
        )
        self.score([0])  # first calls of torch's kernels are slow

    @torch.inference_mode()
    def score(self, nodes: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Sample, gather and run the model once for all nodes. Returns: float32 [n, 64]."""
        seeds = torch.as_tensor(nodes, dtype=torch.long)
        sample = self.sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=seeds))
        x = self.features.index_select(0, sample.node)
        out: npt.NDArray[np.float32] = self.model(x, sample.row, sample.col, len(seeds)).numpy()
        return out
