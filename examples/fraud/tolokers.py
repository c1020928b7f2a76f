"""Tolokers: who will be banned from a crowdsourcing platform.

11,758 workers, an edge for each two who worked on the same tasks, ten figures of each, 21.8 % of them
banned; ten public splits (Platonov et al., arXiv 2302.11640). Knows the data and nothing of models.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.types import FloatArray, IdArray

NUM_SPLITS = 10
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Tolokers:
    """The dataset.

    Attributes:
        x: float32 [n, 10]. y: int64 [n]. edge_index: int64 [2, E], both directions.
        train, validation, test: bool [splits, n].
    """

    x: FloatArray
    y: IdArray
    edge_index: IdArray
    train: Mask
    validation: Mask
    test: Mask

    @property
    def features(self) -> FloatArray:
        """Features of each worker in the graph: figures and logarithm of the degree, standardised."""
        degree = np.bincount(self.edge_index[1], minlength=len(self.y))
        columns = np.column_stack([self.x, np.log1p(degree)])
        scaled: FloatArray = ((columns - columns.mean(0)) / columns.std(0)).astype(np.float32)
        return scaled


def load() -> Tolokers:
    """Read `graphs/tolokers.npz` in $HOPLINE_DATA; where there is none PyG downloads the same data."""
    file = Path(os.environ.get("HOPLINE_DATA") or "../shared/data") / "graphs" / "tolokers.npz"
    if file.is_file():
        with np.load(file) as data:
            return _tolokers(data, [data[f"{name}_masks"] for name in ("train", "val", "test")])
    from torch_geometric.datasets import HeterophilousGraphDataset

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hopline" / "tolokers"
    found = HeterophilousGraphDataset(str(cache), "Tolokers")[0]
    arrays = {key: found[key].numpy() for key in ("x", "y", "edge_index")}
    return _tolokers(arrays, [found[f"{name}_mask"].numpy().T for name in ("train", "val", "test")])


def _tolokers(arrays: Any, masks: list[Mask]) -> Tolokers:
    x, y, edge_index = arrays["x"], arrays["y"], arrays["edge_index"]
    return Tolokers(x.astype(np.float32), y.astype(np.int64), edge_index.astype(np.int64), *masks)
