"""The demo's two models and their training: a GraphSAGE, and an MLP that reads only the features.

Both get the same features, the same width and the same number of steps, so that only the graph differs.

The GraphSAGE is trained on the neighbourhoods that it will be served with: Hopline's own keyed sampler
draws them, with another salt for each epoch. Training on whole neighbourhoods and serving
sampled ones is the usual cause of a served model that is worse than the trained one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from hopline.graph import Graph
from hopline.sampling import BlockBuffers, Sampler, layer_key
from hopline.types import FloatArray, IdArray, Progress, silent

_HIDDEN = 64
_BATCH = 512
_RATE = 4e-3


class Scaled(nn.Module):
    """log(1 + x), then zero mean and unit variance: part of the model, so the graph stores raw values.

    Args:
        features: float32 [n, d], of the training accounts.
    """

    def __init__(self, features: FloatArray) -> None:
        super().__init__()
        logs = np.log1p(features)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.from_numpy(logs.mean(0)))
        self.register_buffer("std", torch.from_numpy(logs.std(0) + np.float32(1e-6)))

    def forward(self, x: Tensor) -> Tensor:
        """Float32 [n, d] to float32 [n, d]."""
        return (torch.log1p(x) - self.mean) / self.std


class FraudSAGE(nn.Module):
    """Two GraphSAGE layers (Hamilton et al., arXiv 1706.02216, mean aggregation), one logit per account."""

    def __init__(self, features: FloatArray) -> None:
        super().__init__()
        self.scale = Scaled(features)
        self.conv1 = SAGEConv(features.shape[1], _HIDDEN)
        self.conv2 = SAGEConv(_HIDDEN, _HIDDEN)
        self.out = nn.Linear(_HIDDEN, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Float32 [n, d] raw features and int64 [2, E] edges to float32 [n, 1] logits."""
        h = torch.relu(self.conv1(self.scale(x), edge_index))
        h = torch.relu(self.conv2(h, edge_index))
        logits: Tensor = self.out(h)
        return logits

    def on_blocks(self, x: Tensor, blocks: Sequence[SampledBlock]) -> Tensor:
        """`forward` for a batch: each layer computes only the rows that the next one reads."""
        h = self.scale(x)
        for conv, block in zip((self.conv1, self.conv2), blocks, strict=True):
            h = torch.relu(conv((h, h[: block.num_dst]), block.edges))
        logits: Tensor = self.out(h)
        return logits


class FeaturesMLP(nn.Module):
    """A multilayer perceptron with the same features and width, without the graph."""

    def __init__(self, features: FloatArray) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            Scaled(features),
            nn.Linear(features.shape[1], _HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Float32 [n, d] raw features to float32 [n, 1] logits."""
        logits: Tensor = self.layers(x)
        return logits


@dataclass(frozen=True, slots=True, eq=False)
class SampledBlock:
    """The sampled edges of one layer.

    Attributes:
        num_dst: destinations; they are the first rows of the layer's input.
        edges: int64 [2, E], rows of sources and of destinations.
    """

    num_dst: int
    edges: Tensor


class Neighborhoods:
    """Samples the neighbourhoods of batches as the server does.

    Args:
        graph: homogeneous.
        fanouts: from the seed outward; -1 means all.
        salt: of the sampler.
    """

    def __init__(self, graph: Graph, fanouts: Sequence[int], salt: int) -> None:
        edges = graph.edge()
        self._samplers = [
            Sampler(edges, fanout, "uniform", layer_key(salt, len(fanouts) - hop, edges.key))
            for hop, fanout in enumerate(fanouts)
        ]
        self._buffers = BlockBuffers()
        self._row_of = np.full(graph.num_nodes, -1, np.int64)

    def __call__(self, seeds: IdArray) -> tuple[IdArray, list[SampledBlock]]:
        """The nodes around distinct seeds (int64 [n], seeds first), and the blocks, input side first."""
        nodes, blocks = seeds, []
        self._row_of[seeds] = np.arange(len(seeds))
        for sampler in self._samplers:
            block = sampler.sample(nodes, self._buffers)
            fresh = np.unique(block.neighbors[self._row_of[block.neighbors] < 0])
            self._row_of[fresh] = np.arange(len(nodes), len(nodes) + len(fresh))
            dst = np.repeat(np.arange(len(nodes)), np.diff(block.offsets))
            edges = torch.from_numpy(np.stack([self._row_of[block.neighbors], dst]))
            blocks.append(SampledBlock(len(nodes), edges))
            nodes = np.concatenate([nodes, fresh])
        self._row_of[nodes] = -1
        return nodes, blocks[::-1]


def train_sage(
    graph: Graph,
    labels: NDArray[np.bool_],
    rows: IdArray,
    *,
    fanouts: Sequence[int],
    epochs: int,
    seed: int,
    progress: Progress = silent,
) -> FraudSAGE:
    """Train on the labels of `rows`; other accounts are only read as neighbours.

    Args:
        labels: bool [num_nodes]. rows: int64 [n], distinct.
        fanouts: fanouts with which the model will be served.
        progress: called with the part that is done.
    """
    torch.manual_seed(seed)
    features = graph.node().features
    model = FraudSAGE(features[rows])
    steps = _Steps(model, rows, labels, epochs, seed)
    neighborhoods = Neighborhoods(graph, fanouts, salt=0)
    for epoch, at, batch, target in steps:
        if at == 0:
            neighborhoods = Neighborhoods(graph, fanouts, salt=seed + epoch + 1)
        ids, blocks = neighborhoods(batch)
        steps.learn(model.on_blocks(torch.from_numpy(features[ids]), blocks)[:, 0], target)
        progress("GraphSAGE", steps.done)
    return model.eval()


def train_mlp(
    features: FloatArray,
    labels: NDArray[np.bool_],
    rows: IdArray,
    *,
    epochs: int,
    seed: int,
    progress: Progress = silent,
) -> FeaturesMLP:
    """Train the MLP; arguments as for `train_sage`."""
    torch.manual_seed(seed)
    model = FeaturesMLP(features[rows])
    steps = _Steps(model, rows, labels, epochs, seed)
    for _, _, batch, target in steps:
        steps.learn(model(torch.from_numpy(features[batch]))[:, 0], target)
        progress("features only", steps.done)
    return model.eval()


class _Steps:
    """The training loop of both models: shuffled mini-batches, AdamW, a one-cycle rate."""

    def __init__(
        self, model: nn.Module, rows: IdArray, labels: NDArray[np.bool_], epochs: int, seed: int
    ) -> None:
        self._rows, self._labels, self._epochs = rows, labels, epochs
        self._rng = np.random.default_rng(seed)
        self._batches = -(-len(rows) // _BATCH)
        self._taken = 0
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=1e-3)
        self._rate = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, _RATE, total_steps=epochs * self._batches
        )
        model.train()

    @property
    def done(self) -> float:
        return self._taken / (self._epochs * self._batches)

    def __iter__(self) -> Iterator[tuple[int, int, IdArray, Tensor]]:
        for epoch in range(self._epochs):
            shuffled = self._rng.permutation(self._rows)
            for at in range(0, len(shuffled), _BATCH):
                batch = shuffled[at : at + _BATCH]
                yield epoch, at, batch, torch.from_numpy(self._labels[batch].astype(np.float32))

    def learn(self, logits: Tensor, target: Tensor) -> None:
        # No weight on the rare class: it would improve the loss and spoil the probabilities.
        loss = nn.functional.binary_cross_entropy_with_logits(logits, target)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._rate.step()
        self._taken += 1
