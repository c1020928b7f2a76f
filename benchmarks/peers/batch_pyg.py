"""PyG's side of `benchmarks.batch`: the two ways in which people score a whole graph with it.

    sampled     a NeighborLoader over all nodes with the model's fanouts
    layerwise   BasicGNN.inference: a NeighborLoader of all neighbours, layer by layer

Each is timed over batches drawn at random among all, since all of them would take minutes; a rate is a
rate. Prints one JSON line. The sampled loop has the advantages of the serving peers' model: fused sparse
multiplication, and layers trimmed to what the seeds need.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE

from benchmarks.peers.pyg_model import Sage

BATCH = 4096


def graph_of(workload: Path) -> Data:
    """The workload as PyG keeps graphs, edges sorted by destination."""
    indptr = np.load(workload / "indptr.npy")
    destinations = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    edges = np.stack([np.load(workload / "indices.npy"), destinations])
    return Data(x=torch.from_numpy(np.load(workload / "features.npy")), edge_index=torch.from_numpy(edges))


def loader_of(data: Data, fanouts: list[int], nodes: torch.Tensor, workers: int) -> NeighborLoader:
    """A loader over some nodes; its workers, if any, stay up."""
    return NeighborLoader(
        data,
        num_neighbors=fanouts,
        batch_size=BATCH,
        input_nodes=nodes,
        is_sorted=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def weights_of(workload: Path) -> dict[str, torch.Tensor]:
    """Parameters by PyG's names."""
    return {path.stem: torch.from_numpy(np.load(path)) for path in workload.glob("conv*.npy")}


@torch.inference_mode()
def sampled(workload: Path, data: Data, nodes: torch.Tensor, workers: int) -> float:
    """Nodes a second of the sampled loop."""
    facts = json.loads((workload / "workload.json").read_text())
    model = Sage(*facts["dims"]).eval()
    model.load_state_dict(weights_of(workload))
    loader = loader_of(data, list(facts["fanouts"]), nodes, workers)

    def once() -> int:
        done = 0
        for batch in loader:
            row, col = batch.edge_index
            done += len(model(batch.x, row, col, batch.batch_size))
        return done

    return _rate(once)


@torch.inference_mode()
def layerwise(workload: Path, data: Data, nodes: torch.Tensor, workers: int) -> float:
    """Nodes a second through both layers, as BasicGNN.inference computes them."""
    dims = json.loads((workload / "workload.json").read_text())["dims"]
    model = GraphSAGE(dims[0], dims[1], num_layers=2, out_channels=dims[2]).eval()
    weights = weights_of(workload)
    model.load_state_dict({f"convs.{int(k[4]) - 1}{k[5:]}": value for k, value in weights.items()})
    # Each batch brings node ids and no features, as `inference` asks of its loader.
    bare = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    loader = loader_of(bare, [-1], nodes, workers)
    # Both layers read 128 columns: the features represent the hidden states, at the same cost.
    states = data.x

    def once() -> int:
        for layer in range(2):
            for batch in loader:
                x = states[batch.n_id]
                model.inference_per_layer(layer, x, batch.edge_index, batch.batch_size)
        return len(nodes)

    return _rate(once)


def _rate(once: object) -> float:
    assert callable(once)
    once()  # workers start, kernels warm up
    began = time.perf_counter()
    done: int = once()
    return done / (time.perf_counter() - began)


def main() -> None:
    """Measure one way with one number of loader workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--way", choices=("sampled", "layerwise"), required=True)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    data = graph_of(args.workload)
    generator = torch.Generator().manual_seed(3)
    nodes = torch.randperm(int(data.num_nodes or 0), generator=generator)[: args.batches * BATCH]
    way = sampled if args.way == "sampled" else layerwise
    rate = way(args.workload, data, nodes, args.workers)
    print(json.dumps({"nodes_per_s": rate}))


if __name__ == "__main__":
    main()
