"""Packages the benchmark's model: two SAGE layers, 10 and 5 neighbours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.large_phases.generate import FEATURE_DIM

FANOUTS = (10, 5)
NUM_OUTPUTS = 64


def package_model(repository: Path) -> None:
    """Write `<repository>/sage/1`, in a separate process, so that this one does not load torch."""
    if not (repository / "sage" / "1" / "model.json").is_file():
        command = [sys.executable, "-m", "benchmarks.large_phases.model", str(repository)]
        subprocess.run(command, check=True)


def build(repository: Path) -> None:
    """Package on a small graph of the same schema: the model fits every graph of that schema."""
    import numpy as np
    import torch
    from torch_geometric.nn import SAGEConv

    from hopline import Graph, package

    class Sage(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = SAGEConv(FEATURE_DIM, 64)
            self.conv2 = SAGEConv(64, NUM_OUTPUTS)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    features = rng.standard_normal((400, FEATURE_DIM)).astype(np.float16)
    graph = Graph.from_edges(rng.integers(0, 400, (2, 4000)), features, feature_dtype="float16")
    package(Sage().eval(), graph, repository, name="sage", fanouts=list(FANOUTS), task="multiclass")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
