"""The engines by name; only the requested one is imported."""

from __future__ import annotations

import importlib

from hopline.artifact import ModelSpec
from hopline.errors import BadRequest
from hopline.graph import Graph
from hopline.jobs.batch.work import Engine

#: Name -> "module:attribute" of what is called with graph, model and threads (0 means all); an engine for
#: a cluster also gets its address.
ENGINES = {
    "local": "hopline.jobs.batch.local:LocalEngine",
    "ray": "hopline.jobs.batch.ray_engine:RayEngine",
}


def open_engine(name: str, graph: Graph, spec: ModelSpec, threads: int, *, address: str = "") -> Engine:
    """The engine of a name.

    Args:
        address: of a cluster; "" uses the engine's default.

    Raises:
        BadRequest: an unknown name (the message lists the known ones), or an address for an engine without
            a cluster.
        BatchError: the engine cannot be used here.
    """
    if name not in ENGINES:
        raise BadRequest(f"--engine {name!r} is unknown; choose one of {', '.join(sorted(ENGINES))}")
    if address and name == "local":
        raise BadRequest(f"--engine local has no cluster; an address ({address}) is for --engine ray")
    module, _, attribute = ENGINES[name].partition(":")
    options = {"address": address} if address else {}
    engine: Engine = getattr(importlib.import_module(module), attribute)(graph, spec, threads, **options)
    return engine
