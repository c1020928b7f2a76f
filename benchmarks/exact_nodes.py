"""Answers that every server must give, whatever it samples: the user's own module on whole neighbourhoods.

A node is exact where no list on the way is longer than its fanout: a sampler takes all of it. The module is
PyG's, on the nodes and edges within its layers' reach; no code of a server is used.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.load import Request
from benchmarks.model_workload import MODELS, Facts
from benchmarks.server_process import ServerFailed, ask, find_row
from benchmarks.workload import FloatArray, IdArray

TOLERANCE = 1e-4
"""Largest difference: as packaging allows."""

_MOST = 32
_FILE = "exact.npz"

Lists = list[tuple[IdArray, IdArray]]
"""Offsets and in-neighbours, by edge type."""


def ensure(folder: Path) -> tuple[IdArray, FloatArray]:
    """Exact nodes of a workload and their rows, computed in a separate process if that is not done yet.

    Returns: int64 [n] node ids of the target type, and float32 [n, num_outputs].
    """
    if not (folder / _FILE).is_file():
        subprocess.run([sys.executable, "-m", "benchmarks.exact_nodes", str(folder)], check=True)
    with np.load(folder / _FILE) as kept:
        return kept["nodes"], kept["rows"]


def compare(port: int, request: Request, expected: tuple[IdArray, FloatArray], connections: int) -> None:
    """Ask a server for every exact node, `connections` at a time.

    Raises: ServerFailed: an answer is absent, no success, or differs from the module's.
    """
    nodes, rows = expected
    with ThreadPoolExecutor(connections) as pool:
        try:
            answers = list(pool.map(lambda node: ask(port, request, int(node)), nodes))
        except (OSError, http.client.HTTPException) as error:
            raise ServerFailed(f"comparing answers: {type(error).__name__}: {error}") from None
    for node, row, (status, body) in zip(nodes, rows, answers, strict=True):
        if status != 200:
            raise ServerFailed(f"node {node}: status {status}: {body[:300]!r}")
        found = find_row(json.loads(body), len(row))
        off = np.inf if found is None else float(np.abs(np.asarray(found) - row).max())
        if not off <= TOLERANCE:
            raise ServerFailed(f"node {node}: the answer differs from the module's by {off:.3g}")


def find(facts: Facts, lists: Lists) -> IdArray:
    """Nodes of the target type whose lists are whole at every hop, those with most neighbours first."""
    whole = {name: np.ones(size, bool) for name, size in facts.num_nodes.items()}
    for fanout in reversed(facts.fanouts):
        before = whole
        whole = {name: np.ones(size, bool) for name, size in facts.num_nodes.items()}
        for (source, _, target), (indptr, indices) in zip(facts.edge_types, lists, strict=True):
            counts = np.diff(indptr)
            ends = np.repeat(np.arange(len(counts)), counts)
            has_cut = np.bincount(ends, weights=~before[source][indices], minlength=len(counts)) > 0
            whole[target] &= (counts <= fanout) & ~has_cut
    into = [
        np.diff(indptr)
        for edge, (indptr, _) in zip(facts.edge_types, lists, strict=True)
        if edge[2] == facts.target
    ]
    found = np.flatnonzero(whole[facts.target])
    return found[np.argsort(-np.sum(into, axis=0)[found], kind="stable")][:_MOST]


def reach(facts: Facts, lists: Lists, nodes: IdArray) -> tuple[dict[str, IdArray], list[IdArray]]:
    """All nodes within the layers' reach, and the edges into those that are not at its end.

    Returns: by type int64 [n], the asked nodes first; by edge type int64 [2, E] of positions in them.
    """
    seen = {name: np.empty(0, np.int64) for name in facts.num_nodes} | {facts.target: nodes}
    edges = [np.empty((2, 0), np.int64)] * len(lists)
    for _ in facts.fanouts:
        edges = []
        for (_, _, target), (indptr, indices) in zip(facts.edge_types, lists, strict=True):
            parts = [indices[indptr[v] : indptr[v + 1]] for v in seen[target]]
            ends = np.repeat(seen[target], [len(part) for part in parts])
            edges.append(np.stack([np.concatenate([*parts, np.empty(0, np.int64)]), ends]).astype(np.int64))
        for (source, _, _), pairs in zip(facts.edge_types, edges, strict=True):
            new = np.setdiff1d(pairs[0], seen[source])
            seen[source] = np.concatenate([seen[source], new])
    places = {name: {int(v): k for k, v in enumerate(ids)} for name, ids in seen.items()}
    local = [
        np.array(
            [[places[edge[0]][int(u)] for u in pairs[0]], [places[edge[2]][int(v)] for v in pairs[1]]],
            np.int64,
        ).reshape(2, -1)
        for edge, pairs in zip(facts.edge_types, edges, strict=True)
    ]
    return seen, local


def module_of(folder: Path, facts: Facts) -> Any:
    """The user's module with the workload's weights."""
    import torch
    from torch_geometric.nn import SAGEConv

    from benchmarks.models_phases.modules import Layers, make

    if facts.model != "sage":
        module = make(MODELS[facts.model])
        module.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
        return module.eval()
    weights = {path.stem: torch.from_numpy(np.load(path)) for path in folder.glob("conv*.npy")}
    hidden, dim = weights["conv1.lin_l.weight"].shape
    sage = Layers(SAGEConv(dim, hidden), SAGEConv(hidden, facts.num_outputs)).eval()
    sage.load_state_dict({f"convs.{int(name[4]) - 1}{name[5:]}": rows for name, rows in weights.items()})
    return sage


def build(folder: Path) -> None:
    """Write the exact nodes and the module's rows of them into a workload's folder."""
    import torch

    facts = Facts.read(folder)
    lists: Lists = []
    for number in range(len(facts.edge_types)):
        offsets, neighbours = (np.load(folder / name) for name in facts.list_files(number))
        lists.append((offsets, neighbours))
    nodes = find(facts, lists)
    if not len(nodes):
        raise SystemExit(f"{folder}: no node whose neighbours a sampler takes all: nothing can be compared")
    seen, edges = reach(facts, lists, nodes)
    x = {}
    for name, ids in seen.items():
        rows: npt.NDArray[np.float32] = np.load(folder / facts.features_file(name), mmap_mode="r")
        x[name] = torch.from_numpy(rows[ids])
    pairs = {edge: torch.from_numpy(each) for edge, each in zip(facts.edge_types, edges, strict=True)}
    module = module_of(folder, facts)
    with torch.inference_mode():
        out = module(x, pairs) if len(x) > 1 else module(x[facts.target], pairs[facts.edge_types[0]])
    np.savez(folder / _FILE, nodes=nodes, rows=out[: len(nodes)].numpy())


if __name__ == "__main__":
    build(Path(sys.argv[1]))
