"""The serving benchmark's graph, features and model weights, drawn from one seed.

Knows: NumPy and a cache folder. Knows neither Hopline nor any peer: every
system under test reads these files in whatever way suits it best.

A workload folder holds
    indptr.npy    int64   [num_nodes + 1]   CSC by destination
    indices.npy   int64   [num_edges]       in-neighbours, ascending per destination
    features.npy  float32 [num_nodes, 128]  N(0, 1)
    conv<l>.<weight>.npy float32            PyG SAGEConv's own names and shapes
    workload.json the sizes, fanouts and seed; written last, so it marks a finished folder
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IdArray = npt.NDArray[np.int64]

FORMAT = 1
"""Raise when the drawing changes: old cache folders are then left alone, not misread."""

NUM_FEATURES, NUM_HIDDEN, NUM_OUTPUTS = 128, 128, 64
FANOUTS = (10, 5)

TAIL = 2.76
"""Rank = n · u**TAIL, u uniform: a node of rank r has a share ∝ r**-(1 - 1/TAIL).

The top node's share is n**(-1/TAIL): 0.67 % of 20 M edges = 134,000 at n = 1 M.
"""


@dataclass(frozen=True)
class Sizes:
    """Size and seed of a drawn graph."""

    name: str
    num_nodes: int
    num_edges: int
    seed: int = 20


FULL = Sizes("full", 1_000_000, 20_000_000)
SMALL = Sizes("small", 50_000, 1_000_000)


def cache_dir() -> Path:
    """Folder of workloads: $HOPLINE_BENCH_CACHE, else `build/bench` in the repository."""
    default = Path(__file__).resolve().parents[1] / "build" / "bench"
    return Path(os.environ.get("HOPLINE_BENCH_CACHE") or default)


def draw_ends(rng: np.random.Generator, popularity: IdArray, num_edges: int) -> IdArray:
    """Draw one end of every edge from the power law.

    Args:
        popularity: int64 [num_nodes], node id by rank, most popular first.
    Returns: int64 [num_edges], node ids.
    """
    u = rng.random(num_edges)
    np.power(u, TAIL, out=u)
    u *= len(popularity)
    return popularity[u.astype(np.int64)]


def draw_csc(rng: np.random.Generator, num_nodes: int, num_edges: int) -> tuple[IdArray, IdArray]:
    """Draw a directed multigraph, heavy-tailed at both ends, as CSC by destination.

    Both ends are independent draws over one ranking, so that a popular node is
    a popular neighbour too, as in social and payment networks. Parallel edges
    (repeated transfers) and self-loops are kept.

    Returns: indptr int64 [num_nodes + 1], indices int64 [num_edges].
    """
    popularity = rng.permutation(num_nodes)
    # One packed key per edge: NumPy's vectorised sort beats argsort + gather fourfold.
    keys = draw_ends(rng, popularity, num_edges)
    keys <<= 32
    keys |= draw_ends(rng, popularity, num_edges)
    keys.sort()
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(keys >> 32, minlength=num_nodes), out=indptr[1:])
    keys &= 0xFFFFFFFF
    return indptr, keys


def draw_weights(rng: np.random.Generator) -> dict[str, FloatArray]:
    """Draw the two SAGEConv layers' parameters, under PyG's state-dict names.

    Returns: `conv1.lin_l.weight` float32 [128, 128], `conv1.lin_l.bias` [128],
        `conv1.lin_r.weight` [128, 128], and the same for conv2 with 64 outputs.
    """
    weights: dict[str, FloatArray] = {}
    for conv, dim_in, dim_out in (("conv1", NUM_FEATURES, NUM_HIDDEN), ("conv2", NUM_HIDDEN, NUM_OUTPUTS)):
        bound = dim_in**-0.5
        for name, shape in (
            ("lin_l.weight", (dim_out, dim_in)),
            ("lin_l.bias", (dim_out,)),
            ("lin_r.weight", (dim_out, dim_in)),
        ):
            weights[f"{conv}.{name}"] = rng.uniform(-bound, bound, shape).astype(np.float32)
    return weights


def write(sizes: Sizes, folder: Path) -> None:
    """Draw a workload into a new folder; every part has its own random stream."""
    graph_rng, feature_rng, weight_rng = (
        np.random.default_rng(s) for s in np.random.SeedSequence(sizes.seed).spawn(3)
    )
    indptr, indices = draw_csc(graph_rng, sizes.num_nodes, sizes.num_edges)
    np.save(folder / "indptr.npy", indptr)
    np.save(folder / "indices.npy", indices)
    features = feature_rng.standard_normal((sizes.num_nodes, NUM_FEATURES), np.float32)
    np.save(folder / "features.npy", features)
    for name, weight in draw_weights(weight_rng).items():
        np.save(folder / f"{name}.npy", weight)
    facts = {
        **asdict(sizes),
        "format": FORMAT,
        "fanouts": FANOUTS,
        "dims": [NUM_FEATURES, NUM_HIDDEN, NUM_OUTPUTS],
        "max_in_degree": int(np.diff(indptr).max()),
    }
    (folder / "workload.json").write_text(json.dumps(facts, indent=2) + "\n")


def ensure(sizes: Sizes) -> Path:
    """Return the folder of a finished workload, drawing it first if it is missing."""
    folder = cache_dir() / f"{sizes.name}-{sizes.seed}-v{FORMAT}"
    if not (folder / "workload.json").exists():
        draft = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
        draft.mkdir(parents=True)
        try:
            write(sizes, draft)
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder


def main() -> None:
    """Draw the workload and print its folder and facts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="50 k nodes, 1 M edges")
    sizes = SMALL if parser.parse_args().small else FULL
    started = time.perf_counter()
    folder = ensure(sizes)
    print(folder, f"({time.perf_counter() - started:.1f} s)")
    print((folder / "workload.json").read_text(), end="")


if __name__ == "__main__":
    main()
