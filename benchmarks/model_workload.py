"""Models of `benchmarks.serving --model`: one graph and one model in files that every server reads.

    sage     two GraphSAGE layers over 128 features (`benchmarks.workload`)
    gatv2    two GATv2 layers, four heads of 32, over 64 features
    hetero   two layers of GraphSAGE over three node types and six edge types, 64 features

The last two are models and graphs of `benchmarks.models`, drawn at another size. A folder of theirs holds
    features.<type>.npy  float32 [num_nodes, 64]
    indptr.<k>.npy       int64 [num_nodes of the destination type + 1], of edge type k of `Facts`
    indices.<k>.npy      int64 [num_edges], in-neighbours, ascending for each destination
    model.pt             the module's state dict
    workload.json        `Facts`; written last, so it marks a finished folder

The last nodes of each type are apart from the drawn graph: few edges, all among themselves, so that a
sampler takes them all. Their answers do not depend on how a server samples (`benchmarks.exact_nodes`), and
no timed request asks for them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks import workload
from benchmarks.workload import IdArray, Sizes

MODELS = {"sage": "", "gatv2": "gatv2", "hetero": "hetero_sage"}
"""Name in `benchmarks.serving` -> name in `benchmarks.models`; sage has a separate workload."""

FORMAT = 1
"""Raise when the drawing changes."""

EdgeType = tuple[str, str, str]
_NUM_APART = 32
_DRAWN_NODES = 100_000


@dataclass(frozen=True)
class Facts:
    """A workload.

    Attributes:
        target: node type of the answers.
        num_ids: nodes of the target type that timed requests ask for: 0 to num_ids - 1.
        fanouts: of every edge type, from the seeds outwards.
        edge_types: by number of their files.
        num_nodes: by node type.
    """

    model: str
    target: str
    num_ids: int
    num_outputs: int
    fanouts: tuple[int, ...]
    edge_types: tuple[EdgeType, ...]
    num_nodes: dict[str, int]

    @classmethod
    def read(cls, folder: Path) -> Facts:
        """Facts of a finished folder, whichever model it is for."""
        facts = json.loads((folder / "workload.json").read_text())
        if "model" not in facts:
            size = facts["num_nodes"]
            return cls(
                model="sage",
                target="node",
                num_ids=size,
                num_outputs=facts["dims"][-1],
                fanouts=tuple(facts["fanouts"]),
                edge_types=(("node", "to", "node"),),
                num_nodes={"node": size},
            )
        facts["fanouts"] = tuple(facts["fanouts"])
        facts["edge_types"] = tuple(map(tuple, facts["edge_types"]))
        return cls(**facts)

    def features_file(self, node_type: str) -> str:
        """Name of the file of a type's features."""
        return "features.npy" if self.model == "sage" else f"features.{node_type}.npy"

    def list_files(self, number: int) -> tuple[str, str]:
        """Names of the files of an edge type's lists: offsets, in-neighbours."""
        if self.model == "sage":
            return "indptr.npy", "indices.npy"
        return f"indptr.{number}.npy", f"indices.{number}.npy"


def ensure(model: str, sizes: Sizes) -> Path:
    """Return the folder of a finished workload, drawing it first if it is missing.

    Draws in a separate process: the harness holds neither torch nor the graph in memory.
    """
    if model == "sage":
        return workload.ensure(sizes)
    folder = workload.cache_dir() / f"{model}-{sizes.name}-v{FORMAT}"
    if not (folder / "workload.json").exists():
        draft = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
        draft.mkdir(parents=True)
        try:
            command = [sys.executable, "-m", "benchmarks.model_workload", model, str(sizes.num_nodes)]
            subprocess.run([*command, str(draft)], check=True)
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder


def edges_apart(rng: np.random.Generator, num_sources: int, num_targets: int, most: int) -> IdArray:
    """Edges among the last `_NUM_APART` nodes of two types, at most `most` into each: int64 [2, E]."""
    counts = rng.integers(0, most + 1, _NUM_APART)
    targets = np.repeat(np.arange(num_targets - _NUM_APART, num_targets), counts)
    return np.stack([rng.integers(num_sources - _NUM_APART, num_sources, len(targets)), targets])


def write(model: str, num_nodes: int, folder: Path) -> None:
    """Draw a workload of gatv2 or hetero into a new folder.

    Args:
        num_nodes: of all types together, without the nodes apart; edges are 20 times as many.
    """
    import torch

    from benchmarks.models_phases.data import draw
    from benchmarks.models_phases.modules import DIM, OUT, TABLE, make

    entry, module = TABLE[MODELS[model]], make(MODELS[model])
    drawn = draw(entry.graph, num_nodes / _DRAWN_NODES)
    target = str(getattr(module, "target", "node"))
    rng = np.random.default_rng(7)
    totals = {}
    for name, rows in drawn.features.items():
        more = 0.1 * rng.standard_normal((_NUM_APART, DIM), np.float32)
        totals[name] = len(rows) + _NUM_APART
        np.save(folder / f"features.{name}.npy", np.concatenate([rows, more]))
    for number, (edge, pairs) in enumerate(drawn.edges.items()):
        apart = edges_apart(rng, totals[edge[0]], totals[edge[2]], min(entry.fanouts))
        sources, targets = np.concatenate([pairs, apart], axis=1)
        order = np.lexsort((sources, targets))
        indptr = np.zeros(totals[edge[2]] + 1, np.int64)
        np.cumsum(np.bincount(targets, minlength=totals[edge[2]]), out=indptr[1:])
        np.save(folder / f"indptr.{number}.npy", indptr)
        np.save(folder / f"indices.{number}.npy", sources[order])
    torch.save(module.state_dict(), folder / "model.pt")
    facts = Facts(
        model=model,
        target=target,
        num_ids=len(drawn.features[target]),
        num_outputs=OUT,
        fanouts=entry.fanouts,
        edge_types=tuple(drawn.edges),
        num_nodes=totals,
    )
    (folder / "workload.json").write_text(json.dumps(asdict(facts), indent=2) + "\n")


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
