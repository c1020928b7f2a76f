"""The attention kernel against the memory: how fast it reads random rows, and how fast a copy does."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from hopline.artifact import Attention
from hopline.engine.attention import AttentionInput
from hopline.engine.kernels import gather
from hopline.engine.view import EdgeView
from hopline.types import IdArray

_NUM_ROWS, _HEADS, _CHANNELS, _FANOUT, _DESTINATIONS = 400_000, 4, 32, 10, 256


def bandwidth(turns: int = 40) -> dict[str, float]:
    """GB/s of rows read by `attend` (GAT, GATv2 and Transformer, 4 heads of 32) and by `gather`.

    Rows are drawn at random from a matrix that fits in no cache; best of `turns`.
    """
    rng = np.random.default_rng(0)
    width = _HEADS * _CHANNELS
    base = rng.standard_normal((_NUM_ROWS, 2 * width), np.float32)
    num_edges = _FANOUT * _DESTINATIONS
    offsets = np.arange(0, num_edges + 1, _FANOUT)
    own_rows = np.arange(_DESTINATIONS)
    query = rng.standard_normal((_DESTINATIONS, width), np.float32)
    out = np.empty((num_edges, 2 * width), np.float32)
    vector = rng.standard_normal(width).astype(np.float32).tobytes()
    reads = {"gat": width + _HEADS, "gatv2": width, "transformer": 2 * width}
    found: dict[str, float] = {}

    def best(ask: Callable[[IdArray], None]) -> float:
        taken = []
        for _ in range(turns):
            rows = rng.integers(0, _NUM_ROWS, num_edges)
            began = time.thread_time()
            ask(rows)
            taken.append(time.thread_time() - began)
        return min(taken)

    for kind, columns in reads.items():
        attention = Attention(
            kind=kind,  # type: ignore[arg-type]
            heads=_HEADS,
            channels=_CHANNELS,
            query=(0, _HEADS if kind == "gat" else width),
            slope=0.2,
            vector=vector if kind == "gatv2" else b"",
        )
        kernel = AttentionInput(attention, 0, columns)

        def attend(rows: IdArray, kernel: AttentionInput = kernel) -> None:
            kernel.run(
                EdgeView(base, rows, offsets), 0, _DESTINATIONS, base, own_rows, query, own_rows, out, 0
            )

        attend(rng.integers(0, _NUM_ROWS, num_edges))
        found[kind] = 4e-9 * num_edges * columns / best(attend)
    gather(base, own_rows, 0, width, out, 0)
    found["gather"] = 4e-9 * num_edges * width / best(lambda rows: gather(base, rows, 0, width, out, 0))
    return {name: round(value, 2) for name, value in found.items()}
