"""The protocol's data (GLNN, arXiv 2110.08727): largest component, labels drawn by seed, nodes held out.

Of every class 20 nodes have labels for training and 30 for validation; all others are test nodes. A fifth
of these is held out: they and their edges are missing while teacher, soft labels and student are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hopline.types import FloatArray, IdArray

NUM_TRAIN, NUM_VALID, HELD_OUT = 20, 30, 0.2


@dataclass(frozen=True)
class Data:
    """A whole graph with labels.

    Attributes:
        edge_index: int64 [2, E], both directions. x: float32 [N, F], rows of unit length. y: int64 [N].
    """

    edge_index: IdArray
    x: FloatArray
    y: IdArray

    @property
    def num_classes(self) -> int:
        return int(self.y.max()) + 1


@dataclass(frozen=True)
class Split:
    """Node numbers of the whole graph, int64, sorted. `tran` and `ind` are the test nodes."""

    train: IdArray
    valid: IdArray
    tran: IdArray
    ind: IdArray

    @property
    def observed(self) -> IdArray:
        return np.sort(np.concatenate([self.train, self.valid, self.tran]))


@dataclass(frozen=True)
class Observed:
    """Part of the graph that teacher and student may see when they are made; nodes are renumbered.

    Attributes:
        edge_index: int64 [2, E'], edges between observed nodes.
        x: float32 [n, F].
        labels: int64 [n]: of training and validation nodes; -1 for all others.
        train, valid, tran: int64, rows of x. nodes: int64 [n], their numbers in the whole graph.
    """

    edge_index: IdArray
    x: FloatArray
    labels: IdArray
    train: IdArray
    valid: IdArray
    tran: IdArray
    nodes: IdArray


def load(file: Path) -> Data:
    """Reads a graph of the shared data's format; only its largest component is kept."""
    with np.load(file) as arrays:
        edge_index, y = arrays["edge_index"].astype(np.int64), arrays["y"].astype(np.int64)
        x = arrays["x"].astype(np.float32) if "x" in arrays else _dense(arrays)
    keep = largest_component(edge_index, len(y))
    number = np.full(len(y), -1, np.int64)
    number[keep] = np.arange(len(keep))
    inside = (number[edge_index] >= 0).all(0)
    length = np.maximum(np.linalg.norm(x[keep], axis=1, keepdims=True), 1e-12)
    classes, labels = np.unique(y[keep], return_inverse=True)
    del classes
    return Data(number[edge_index[:, inside]], x[keep] / length, labels.astype(np.int64))


def _dense(arrays: Any) -> FloatArray:
    num_rows, num_columns = (int(each) for each in arrays["x_shape"])
    x = np.zeros((num_rows, num_columns), np.float32)
    rows = np.repeat(np.arange(num_rows), np.diff(arrays["x_indptr"]))
    x[rows, arrays["x_indices"]] = arrays.get("x_data", 1)
    return x


def largest_component(edge_index: IdArray, num_nodes: int) -> IdArray:
    """Nodes of the largest connected component, sorted; edges count both ways."""
    lowest = np.arange(num_nodes)
    while True:
        before = lowest.copy()
        for source, destination in (edge_index, edge_index[::-1]):
            np.minimum.at(lowest, destination, lowest[source])
        lowest = lowest[lowest]
        if (lowest == before).all():
            return np.flatnonzero(lowest == np.bincount(lowest).argmax())


def draw(data: Data, seed: int) -> Split:
    """Split by seed. A class of too few nodes gives at most half of them, in the same proportion."""
    chance = np.random.default_rng(seed)
    train, valid = [], []
    for label in range(data.num_classes):
        nodes = chance.permutation(np.flatnonzero(data.y == label))
        share = min(1.0, len(nodes) / 2 / (NUM_TRAIN + NUM_VALID))
        first, last = int(NUM_TRAIN * share), int((NUM_TRAIN + NUM_VALID) * share)
        train.append(nodes[:first])
        valid.append(nodes[first:last])
    used = np.concatenate(train + valid)
    test = chance.permutation(np.setdiff1d(np.arange(len(data.y)), used))
    held = round(len(test) * HELD_OUT)
    return Split(
        *(np.sort(part) for part in (np.concatenate(train), np.concatenate(valid))),
        *(np.sort(part) for part in (test[held:], test[:held])),
    )


def observe(data: Data, split: Split) -> Observed:
    """The graph without its held-out nodes, and without test labels."""
    nodes = split.observed
    number = np.full(len(data.y), -1, np.int64)
    number[nodes] = np.arange(len(nodes))
    inside = (number[data.edge_index] >= 0).all(0)
    labels = np.full(len(nodes), -1, np.int64)
    for part in (split.train, split.valid):
        labels[number[part]] = data.y[part]
    return Observed(
        number[data.edge_index[:, inside]],
        data.x[nodes],
        labels,
        number[split.train],
        number[split.valid],
        number[split.tran],
        nodes,
    )
