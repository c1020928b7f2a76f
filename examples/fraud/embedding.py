"""The GNN: what each worker's neighbourhood looks like, two hops deep, and what networks learned from that.

SIGN (Frasca et al., arXiv 2004.11198): propagate first, learn after. Two SAGE convolutions with fixed
weights give the mean and the variance of the neighbours' figures, and of their neighbours' means; small
networks learn from these who was banned. Propagation does not depend on labels, so ten splits share it.

Trees must learn from what they will see when they are asked. A network's opinion of those whose labels it
was trained on is better than its opinion of other nodes, and trees that learn from it trust it too much:
AUC 0.852 in place of 0.857, mean of ten splits. So there are four networks, each trained without a quarter
of the training nodes. For a node to learn from, the one that did not see it is asked; the served GNN has
all four and answers their mean.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from hopline.types import FloatArray, IdArray

NUM_FOLDS = 4
_WIDTHS = (64, 16)
_EPOCHS, _LOOK, _RATE, _DECAY, _DROPOUT = 60, 5, 0.01, 1e-4, 0.3


class Neighbourhood(nn.Module):
    """Means and variances of one hop and of two; nothing in it is trained.

    Attributes:
        width: columns of the answer, for `num_features` columns of each node.
    """

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.near, self.far = _mean(2 * num_features), _mean(2 * num_features)
        self.num_features, self.width = num_features, 5 * num_features

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Float32 [n, d] to [n, 5 d]: own, mean, variance, mean of means, variance of means."""
        mean, variance = self._moments(self.near(torch.cat([x, x * x], 1), edge_index))
        far_mean, far_variance = self._moments(self.far(torch.cat([mean, mean * mean], 1), edge_index))
        return torch.cat([x, mean, variance, far_mean, far_variance], 1)

    def _moments(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        mean, square = sums[:, : self.num_features], sums[:, self.num_features :]
        return mean, torch.relu(square - mean * mean)


def _mean(width: int) -> SAGEConv:
    """A convolution that answers its neighbours' mean."""
    conv = SAGEConv(width, width, root_weight=False, bias=False)
    conv.lin_l.weight = nn.Parameter(torch.eye(width), requires_grad=False)
    return conv


class Opinions(nn.Module):
    """Networks side by side: float32 [n, width] to logits [n, folds]."""

    center: Tensor
    scale: Tensor

    def __init__(self, states: FloatArray) -> None:
        super().__init__()
        self.register_buffer("center", torch.from_numpy(states.mean(0)))
        self.register_buffer("scale", torch.from_numpy(1 / np.maximum(states.std(0), 1e-3)))
        first, second = _WIDTHS
        self.networks = nn.ModuleList(
            nn.Sequential(
                *(nn.Linear(states.shape[1], first), nn.ReLU(), nn.Dropout(_DROPOUT)),
                *(nn.Linear(first, second), nn.ReLU(), nn.Dropout(_DROPOUT)),
                nn.Linear(second, 1),
            )
            for _ in range(NUM_FOLDS)
        )

    def forward(self, states: Tensor) -> Tensor:
        """See the class."""
        x = (states - self.center) * self.scale
        return torch.cat([network(x) for network in self.networks], 1)


class Embedding(nn.Module):
    """The packaged module: float32 [n, d] and edges to [n, 5 d + 1], states and the mean opinion."""

    def __init__(self, neighbourhood: Neighbourhood, opinions: Opinions) -> None:
        super().__init__()
        self.neighbourhood, self.opinions = neighbourhood, opinions
        self.eval()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """See the class."""
        states = self.neighbourhood(x, edge_index)
        return torch.cat([states, self.opinions(states).mean(1, keepdim=True)], 1)


def states_of(neighbourhood: Neighbourhood, x: FloatArray, edge_index: IdArray) -> FloatArray:
    """States of all nodes, computed by PyG: float32 [n, 5 d]."""
    with torch.no_grad():
        states: FloatArray = neighbourhood(torch.from_numpy(x), torch.from_numpy(edge_index)).numpy()
    return states


def train(
    states: FloatArray,
    labels: IdArray,
    nodes: IdArray,
    validation: IdArray,
    seed: int = 0,
    advance: Callable[[], object] = lambda: None,
) -> tuple[Opinions, FloatArray]:
    """Train the networks on a split.

    Args:
        states: float32 [n, width], of all nodes.
        nodes: to train on. validation: which epoch is kept is chosen on these.
        advance: called after each epoch.

    Returns: the networks, and the opinion of each node as trees may learn from it, float32 [n]: of training
        nodes that of the network without them, of others the mean.
    """
    torch.manual_seed(seed)
    shuffled = np.random.default_rng(seed).permutation(nodes)
    fold = np.arange(len(nodes)) % NUM_FOLDS
    seen = torch.from_numpy(np.arange(NUM_FOLDS) != fold[:, None]).float()
    rows, target = torch.from_numpy(states[shuffled]), torch.from_numpy(labels[shuffled]).float()
    target = target[:, None].expand_as(seen)
    opinions = Opinions(states)
    optimizer = torch.optim.Adam(opinions.parameters(), lr=_RATE, weight_decay=_DECAY)
    best, kept = -1.0, opinions
    for epoch in range(_EPOCHS):
        opinions.train()
        loss = F.binary_cross_entropy_with_logits(opinions(rows), target, seen, reduction="sum") / len(
            nodes
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % _LOOK == _LOOK - 1:
            score = float(roc_auc_score(labels[validation], ask(opinions, states[validation]).mean(1)))
            if score > best:
                best, kept = score, copy.deepcopy(opinions)
        advance()
    every = ask(kept, states)
    learned_from = every.mean(1)
    learned_from[shuffled] = every[shuffled, fold]
    return kept, learned_from


def ask(opinions: Opinions, states: FloatArray) -> FloatArray:
    """Logits float32 [n, folds]."""
    opinions.eval()
    with torch.no_grad():
        logits: FloatArray = opinions(torch.from_numpy(states)).numpy()
    return logits
