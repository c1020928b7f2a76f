"""The teacher: GraphSAGE of two layers, hidden width 128, five sampled neighbours at each hop in training.

The aggregator is the mean of a node and its neighbours ("gcn" in GLNN's code, which measures better there
than the plain mean). Neighbours are drawn with replacement, again in each epoch; answers use all of them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.distill_phases.splits import Observed
from hopline.types import FloatArray, IdArray
from hopline_compress.distill.propagate import by_destination

HIDDEN, FANOUT, EPOCHS, PATIENCE = 128, 5, 300, 60
#: Epochs between two looks at the validation nodes.
_LOOK = 2
_SPARSE = 0.05


@dataclass(frozen=True)
class Neighborhoods:
    """Nodes' features and in-neighbours, as the layers need them.

    Attributes:
        x: [N, F], sparse where few values are not 0. mean_x: its means over neighbourhoods, if x is dense.
    """

    indptr: Tensor
    indices: Tensor
    owner: Tensor
    x: Tensor
    mean_x: Tensor | None

    @classmethod
    def of(cls, edge_index: IdArray, x: FloatArray) -> Neighborhoods:
        indptr, indices = (torch.from_numpy(each) for each in by_destination(edge_index, len(x)))
        owner = torch.repeat_interleave(torch.arange(len(x)), indptr.diff())
        dense = torch.from_numpy(x)
        if np.count_nonzero(x) < _SPARSE * x.size:
            return cls(indptr, indices, owner, dense.to_sparse(), None)
        bare = cls(indptr, indices, owner, dense, None)
        return cls(indptr, indices, owner, dense, bare.mean(dense))

    def mean(self, h: Tensor) -> Tensor:
        """Of every node and all its neighbours."""
        total = h.index_add(0, self.owner, h[self.indices])
        return total / (self.indptr.diff() + 1)[:, None]

    def first(self, weight: Tensor) -> Tensor:
        """The means of x times a layer's weight [F, H]."""
        if self.mean_x is not None:
            return self.mean_x @ weight
        return self.mean(torch.sparse.mm(self.x, weight))

    def rows(self, nodes: Tensor, weight: Tensor) -> Tensor:
        """Of `nodes`, times a layer's weight [F, H]."""
        if self.mean_x is None:
            return torch.sparse.mm(self.x, weight)[nodes]
        return self.x[nodes] @ weight

    def draw(self, nodes: Tensor) -> Tensor:
        """int64 [n, 1 + FANOUT]: each node and neighbours drawn; itself where it has none."""
        begin, degrees = self.indptr[nodes][:, None], self.indptr.diff()[nodes][:, None]
        spots = begin + (torch.rand(len(nodes), FANOUT) * degrees).long()
        drawn = self.indices[spots.clamp(max=max(len(self.indices) - 1, 0))]
        return torch.cat([nodes[:, None], torch.where(degrees > 0, drawn, nodes[:, None])], 1)


class Sage(nn.Module):
    """Two layers; x float32 [N, F] to logits [N, C]."""

    def __init__(self, num_inputs: int, num_classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(num_inputs, HIDDEN), nn.Linear(HIDDEN, num_classes)

    def answers(self, graph: Neighborhoods) -> Tensor:
        """Of all nodes, from all neighbours."""
        h = torch.relu(graph.first(self.first.weight.T) + self.first.bias)
        return graph.mean(h @ self.second.weight.T) + self.second.bias

    def sampled(self, graph: Neighborhoods, seeds: Tensor) -> Tensor:
        """Of the seeds, from five neighbours at each of two hops."""
        nodes, place = graph.draw(seeds).unique(return_inverse=True)
        wanted, spot = graph.draw(nodes).unique(return_inverse=True)
        rows = graph.rows(wanted, self.first.weight.T)[spot].mean(1)
        h = torch.relu(rows + self.first.bias)
        return self.second(h[place].mean(1))


def train_teacher(observed: Observed, graph: Neighborhoods, num_classes: int, seed: int) -> Sage:
    """Trains on training labels of the observed graph; validation labels choose the epoch."""
    train, valid = torch.from_numpy(observed.train), torch.from_numpy(observed.valid)
    labels = torch.from_numpy(observed.labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = Sage(observed.x.shape[1], num_classes)
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=5e-4)
        best, best_score, best_epoch = copy.deepcopy(module.state_dict()), (-1.0, 0.0), 0
        for epoch in range(EPOCHS):
            module.train()
            optimizer.zero_grad()
            nn.functional.cross_entropy(module.sampled(graph, train), labels[train]).backward()
            optimizer.step()
            if epoch % _LOOK:
                continue
            module.eval()
            with torch.no_grad():
                answers = module.answers(graph)[valid]
                right = float((answers.argmax(1) == labels[valid]).float().mean())
                doubt = float(nn.functional.cross_entropy(answers, labels[valid]))
            # Few validation nodes give many epochs one score.
            if (score := (right, -doubt)) > best_score:
                best, best_score, best_epoch = copy.deepcopy(module.state_dict()), score, epoch
            elif epoch - best_epoch >= PATIENCE:
                break
    module.load_state_dict(best)
    return module.eval()


def probabilities(module: Sage, graph: Neighborhoods) -> FloatArray:
    """float32 [N, C] of a graph that may be another than the one of training."""
    with torch.no_grad():
        found: FloatArray = module.answers(graph).softmax(1).numpy()
    return np.ascontiguousarray(found)
