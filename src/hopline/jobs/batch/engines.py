"""Which engine a name means; only the one that is asked for is imported."""

from __future__ import annotations

import importlib

from hopline.artifact import ModelSpec
from hopline.errors import BadRequest
from hopline.graph import Graph
from hopline.jobs.batch.work import Engine

#: Name -> "module:attribute" of what is called with graph, model and threads (0 for all there are); one of
#: a cluster also takes its address.
ENGINES = {
    "local": "hopline.jobs.batch.local:LocalEngine",
    "ray": "hopline.jobs.batch.ray_engine:RayEngine",
}


def open_engine(name: str, graph: Graph, spec: ModelSpec, threads: int, *, address: str = "") -> Engine:
    """The engine of a name.

    Args:
        address: of a cluster; "" takes what the engine takes by default.

    Raises:
        BadRequest: there is none; the message lists them. Or an address for one that has no cluster.
        BatchError: the engine cannot be used here.
    """
    if name not in ENGINES:
        raise BadRequest(f"--engine {name!r} is unknown; there are {', '.join(sorted(ENGINES))}")
    if address and name == "local":
        raise BadRequest(f"--engine local has no cluster; an address ({address}) is for --engine ray")
    module, _, attribute = ENGINES[name].partition(":")
    options = {"address": address} if address else {}
    engine: Engine = getattr(importlib.import_module(module), attribute)(graph, spec, threads, **options)
    return engine
