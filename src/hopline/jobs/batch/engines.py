"""Which engine a name means; only the one that is asked for is imported."""

from __future__ import annotations

import importlib

from hopline.artifact import ModelSpec
from hopline.errors import BadRequest
from hopline.graph import Graph
from hopline.jobs.batch.work import Engine

#: Name -> "module:attribute" of what is called with graph, model and threads (0 for all there are).
ENGINES = {
    "local": "hopline.jobs.batch.local:LocalEngine",
}


def open_engine(name: str, graph: Graph, spec: ModelSpec, threads: int) -> Engine:
    """The engine of a name.

    Raises:
        BadRequest: there is none; the message lists them.
    """
    if name not in ENGINES:
        raise BadRequest(f"--engine {name!r} is unknown; there are {', '.join(sorted(ENGINES))}")
    module, _, attribute = ENGINES[name].partition(":")
    engine: Engine = getattr(importlib.import_module(module), attribute)(graph, spec, threads)
    return engine
