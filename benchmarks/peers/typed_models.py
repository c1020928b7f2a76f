"""GATv2 and the heterogeneous GraphSAGE as the peers serve them.

PyG's sampler is kept open, and the module is the user's.

A request costs one `sample_from_nodes` over the union of its seeds, one gather for each node type and one
forward pass, trimmed to what the seeds need: a layer gets its sources and, as the second half of a pair,
only the destinations that the next layer reads. PyG's `trim_to_layer` needs counts that only pyg-lib's
sampler returns. They follow from the order in which torch-sparse samples: nodes of each type hop by hop
from the seeds, edges of each type by ascending destination.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput
from torch_sparse import SparseTensor

from benchmarks.model_workload import MODELS, EdgeType, Facts
from benchmarks.models_phases.modules import make
from benchmarks.peers.pyg_model import adjacency


def lists_of(workload: Path, facts: Facts) -> dict[EdgeType, SparseTensor]:
    """The graph by edge type, transposed, as PyG keeps graphs for sampling."""
    lists = {}
    for number, edge in enumerate(facts.edge_types):
        offsets, neighbours = (torch.from_numpy(np.load(workload / n)) for n in facts.list_files(number))
        lists[edge] = SparseTensor(
            rowptr=offsets,
            col=neighbours,
            sparse_sizes=(facts.num_nodes[edge[2]], facts.num_nodes[edge[0]]),
            is_sorted=True,
            trust_data=True,
        )
    return lists


def module_of(workload: Path, facts: Facts) -> Any:
    """The user's module with the workload's weights."""
    module = make(MODELS[facts.model])
    module.load_state_dict(torch.load(workload / "model.pt", weights_only=True))
    return module


class AttentionScorer:
    """Two GATv2 layers over one node type."""

    def __init__(self, workload: Path, num_threads: int) -> None:
        """Load a workload of gatv2; `num_threads` are torch's."""
        torch.set_num_threads(num_threads)
        facts = Facts.read(workload)
        self.num_outputs = facts.num_outputs
        self.features = torch.from_numpy(np.load(workload / facts.features_file("node")))
        (lists,) = lists_of(workload, facts).values()
        data = Data(adj_t=lists, num_nodes=len(self.features))
        self.sampler = NeighborSampler(data, num_neighbors=list(facts.fanouts))
        self.first, self.second = module_of(workload, facts).convs
        self.score([0])  # first calls of torch's kernels are slow

    @torch.inference_mode()
    def score(self, nodes: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Sample, gather and run the model once for all nodes. Returns: float32 [n, num_outputs]."""
        seeds = torch.as_tensor(nodes, dtype=torch.long)
        num_seeds = len(seeds)
        found = self.sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=seeds))
        x = self.features.index_select(0, found.node)
        num_edges = int(torch.searchsorted(found.col, num_seeds))
        num_hidden = num_seeds
        if num_edges:
            num_hidden = max(num_seeds, int(found.row[:num_edges].max()) + 1)
        edges = torch.stack([found.row, found.col])
        h = self.first((x, x[:num_hidden]), edges).relu_()
        out: npt.NDArray[np.float32] = self.second((h, h[:num_seeds]), edges[:, :num_edges]).numpy()
        return out


class HeteroScorer:
    """Two layers of HeteroConv over several node and edge types."""

    def __init__(self, workload: Path, num_threads: int) -> None:
        """Load a workload of hetero; `num_threads` are torch's."""
        torch.set_num_threads(num_threads)
        facts = Facts.read(workload)
        self.num_outputs, self.target = facts.num_outputs, facts.target
        self.features = {
            name: torch.from_numpy(np.load(workload / facts.features_file(name)))
            for name in facts.num_nodes
        }
        data = HeteroData()
        for name, rows in self.features.items():
            data[name].num_nodes = len(rows)
        for edge, lists in lists_of(workload, facts).items():
            data[edge].adj_t = lists
        self.sampler = NeighborSampler(data, num_neighbors=list(facts.fanouts))
        module = module_of(workload, facts)
        self.first, self.second = module.a, module.b
        self.score([0])  # first calls of torch's kernels are slow

    @torch.inference_mode()
    def score(self, nodes: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Sample, gather and run the model once for all nodes. Returns: float32 [n, num_outputs]."""
        seeds = torch.as_tensor(nodes, dtype=torch.long)
        asked = NodeSamplerInput(input_id=None, node=seeds, input_type=self.target)
        found = self.sampler.sample_from_nodes(asked)
        x = {name: self.features[name].index_select(0, ids) for name, ids in found.node.items()}
        # The second layer needs the edges into seeds, the first one as destinations those edges' sources.
        num_edges = {}
        num_hidden = dict.fromkeys(x, 0) | {self.target: len(seeds)}
        for edge, row in found.row.items():
            if edge[2] != self.target:
                continue
            count = num_edges[edge] = int(torch.searchsorted(found.col[edge], len(seeds)))
            if count:
                num_hidden[edge[0]] = max(num_hidden[edge[0]], int(row[:count].max()) + 1)
        pairs = {edge: (x[edge[0]], x[edge[2]][: num_hidden[edge[2]]]) for edge in found.row}
        sampled = {
            edge: adjacency(row, found.col[edge], num_hidden[edge[2]], len(x[edge[0]]))
            for edge, row in found.row.items()
        }
        h = {name: rows.relu_() for name, rows in self.first(pairs, sampled).items()}
        pairs = {edge: (h[edge[0]], h[self.target][: len(seeds)]) for edge in num_edges}
        sampled = {
            edge: adjacency(found.row[edge][:count], found.col[edge][:count], len(seeds), len(h[edge[0]]))
            for edge, count in num_edges.items()
        }
        out: npt.NDArray[np.float32] = self.second(pairs, sampled)[self.target].numpy()
        return out
