"""PyG's side and Hopline's side of `benchmarks.models`, in one process."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput

from benchmarks.models_phases.data import Drawn
from benchmarks.models_phases.modules import TABLE, make
from hopline import package
from hopline.artifact import read_spec
from hopline.engine.model import Model, StateCachePlan
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.memory.arena import Arena
from hopline.types import FloatArray, IdArray

_CACHE_BYTES = 1 << 30


class Pyg:
    """Samples with PyG's sampler, gathers, and runs the module on what was sampled."""

    def __init__(self, name: str, drawn: Drawn) -> None:
        entry = TABLE[name]
        self._kind, self._module, self._num_hops = entry.graph, make(name), len(entry.fanouts)
        self.target = getattr(self._module, "target", "node")
        self._features = {key: torch.from_numpy(rows) for key, rows in drawn.features.items()}
        data: Any
        if self._kind in ("plain", "learned"):
            edges = torch.from_numpy(next(iter(drawn.edges.values())))
            data = Data(edge_index=edges, num_nodes=len(self._features["node"]))
        else:
            data = HeteroData()
            for key, rows in self._features.items():
                data[key].num_nodes = len(rows)
            for edge, pairs in drawn.edges.items():
                data[edge].edge_index = torch.from_numpy(pairs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._sampler = NeighborSampler(data, num_neighbors=list(entry.fanouts))
        self.score(np.array([0]))

    @torch.inference_mode()
    def score(self, seeds: IdArray) -> FloatArray:
        """Answers of int64 [n] distinct seeds, float32 [n, out]."""
        nodes = torch.from_numpy(seeds)
        if self._kind in ("plain", "learned"):
            found = self._sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=nodes))
            edge_index = torch.stack([found.row, found.col])
            if self._kind == "learned":
                out = self._module(edge_index, found.node)
            else:
                x = self._features["node"].index_select(0, found.node)
                out = self._module(x, edge_index, self._hops(found, len(seeds)))
        else:
            asked = NodeSamplerInput(input_id=None, node=nodes, input_type=self.target)
            found = self._sampler.sample_from_nodes(asked)
            rows = {key: self._features[key].index_select(0, ids) for key, ids in found.node.items()}
            pairs = {key: torch.stack([found.row[key], found.col[key]]) for key in found.row}
            if self._kind == "relations":
                numbers = torch.repeat_interleave(
                    torch.arange(len(pairs)), torch.tensor([part.shape[1] for part in pairs.values()])
                )
                out = self._module(rows["node"], torch.cat(list(pairs.values()), dim=1), numbers)
            else:
                out = self._module(rows, pairs)
        answer: FloatArray = out[: len(seeds)].numpy()
        return answer

    def _hops(self, found: Any, num_seeds: int) -> list[tuple[int, int]]:
        """Nodes and edges that each layer needs, from the order in which torch-sparse samples.

        Nodes come hop by hop from the seeds, edges by ascending destination.
        """
        num_hops = self._num_hops
        nodes, edges, reach = [num_seeds], [0], num_seeds
        for _ in range(num_hops):
            count = int(torch.searchsorted(found.col, reach))
            if count:
                reach = max(reach, int(found.row[:count].max()) + 1)
            nodes.append(reach)
            edges.append(count)
        return [(nodes[num_hops - k], edges[num_hops - k]) for k in range(num_hops)]


class Hopline:
    """The packaged model, without and with a filled state cache."""

    def __init__(self, name: str, drawn: Drawn, folder: Path) -> None:
        entry, module = TABLE[name], make(name)
        self.target = getattr(module, "target", "node")
        self._num_nodes = len(drawn.features[self.target])
        self.graph = Graph.from_tables(
            {key: NodeTable(rows) for key, rows in drawn.features.items()},
            {key: EdgeTable(pairs) for key, pairs in drawn.edges.items()},
        )
        report = package(
            module, self.graph, folder, name=name, fanouts=list(entry.fanouts), task="embedding",
            target=self.target, overwrite=True, check_nodes=64,
            embeddings={"embedding": "node"} if entry.graph == "learned" else None,
        )  # fmt: skip
        self.parity = report.spec.parity["max_abs_diff"]
        self.empty = self._load(report.path, 0)
        self.filled = self._load(report.path, _CACHE_BYTES)

    def _load(self, path: Path, cache_bytes: int) -> Model:
        spec = read_spec(path)
        plan = StateCachePlan(spec, self.graph, cache_bytes)
        return Model(path, spec, self.graph, plan.build(Arena(plan.num_bytes)))

    def score(self, model: Model, seeds: IdArray) -> FloatArray:
        """Answers of int64 [n] distinct seeds, float32 [n, out]."""
        return model.logits(model.final_states({self.target: seeds})[self.target])

    def fill(self) -> None:
        """Compute every row once."""
        for first in range(0, self._num_nodes, 4096):
            self.score(self.filled, np.arange(first, min(first + 4096, self._num_nodes)))

    def is_bit_equal(self) -> bool:
        """True if nodes get the same bits alone and together, with and without the state cache."""
        ids = np.random.default_rng(5).permutation(self._num_nodes)[:300]
        together = self.score(self.empty, ids).copy()
        alone = np.concatenate([self.score(self.empty, ids[i : i + 1]).copy() for i in range(60)])
        cached = self.score(self.filled, ids).copy()
        return bool((alone == together[:60]).all() and (cached == together).all())
