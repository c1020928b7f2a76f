"""The servers people use today, each with the same PyG model on the same graph.

`PEERS` says how the harness starts and asks each one. A peer's configuration
may differ between one connection and 32, where its own best differs: each of
its figures is the best we could honestly get.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.load import ID, Request


@dataclass(frozen=True)
class Peer:
    """One peer: its module, what it imports, how to ask it, and its tuning."""

    module: str
    imports: tuple[str, ...]
    request: Request
    c1_args: tuple[str, ...] = ()
    c32_args: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


_NODE = f'{{"node": {ID}}}'
_OIP = f'{{"inputs": [{{"name": "node_ids", "datatype": "INT64", "shape": [1, 1], "data": [{ID}]}}]}}'
_PYG = ("torch", "torch_geometric", "torch_sparse", "torch_scatter")

PEERS: dict[str, Peer] = {
    "fastapi_pyg": Peer(
        module="benchmarks.peers.fastapi_pyg",
        imports=(*_PYG, "fastapi", "uvicorn", "uvloop", "httptools"),
        request=Request("/score", _NODE),
    ),
    "litserve_pyg": Peer(
        module="benchmarks.peers.litserve_pyg",
        imports=(*_PYG, "litserve"),
        request=Request("/predict", _NODE),
        c1_args=("--max-batch-size", "1"),
    ),
    "triton_pyg": Peer(
        module="benchmarks.peers.triton_pyg",
        imports=(*_PYG, "pytriton"),
        request=Request("/v2/models/nodes/infer", _OIP),
        c32_args=("--queue-delay-us", "5000"),
    ),
    "ray_pyg": Peer(
        module="benchmarks.peers.ray_pyg",
        imports=(*_PYG, "ray"),
        request=Request("/", _NODE),
        environment={
            # Both from Ray's performance guide: HAProxy in place of the Python proxy, and
            # no extra threads and hops between proxy, router and replica.
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
            # Two cores start Ray's processes slowly; its 5 s kills a proxy that is still loading.
            "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
            "RAY_USAGE_STATS_ENABLED": "0",
        },
    ),
}

#: The peer of `benchmarks.columns`.
COLUMNS_PEER = Peer(
    module="benchmarks.peers.fastapi_columns",
    imports=(*PEERS["fastapi_pyg"].imports, "pandas", "sklearn"),
    request=Request("/score", _NODE),
)
