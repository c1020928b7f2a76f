"""Fills L1 and the embedding tables before the first request, with the nodes that requests read most."""

from __future__ import annotations

import asyncio
import logging
import time

import numpy as np

from hopline.config import Config
from hopline.engine.model import Model
from hopline.engine.source import Absent, Overlay, RowsAbsent
from hopline.errors import ConfigError, HoplineError
from hopline.rollout.version import ServedVersion
from hopline.types import IdArray

log = logging.getLogger(__name__)

#: Nodes computed at once, and the longest that the rows of so many are waited for.
_AT_ONCE = 1024
_PATIENCE_S = 5.0
#: Rows of one fetch: as many as requests ask for together, since a fetch that takes longer than
#: `features.fetch_timeout_ms` counts as the store's failure and would open its breaker.
_ROWS_AT_ONCE = 1024


async def prewarm(served: ServedVersion, config: Config) -> None:
    """Compute the most read nodes of a version, which keeps what that passes through.

    A store that does not answer is no reason not to start: what is missing is fetched on demand.

    Raises:
        ConfigError: `features.prewarm_file` cannot be read.
    """
    model = served.model
    settings = config.features
    if not isinstance(model, Model) or not (settings.prewarm_nodes or settings.prewarm_file):
        return
    began = time.perf_counter()
    node_type = model.spec.head.node_type
    ids = _listed(model, config) if settings.prewarm_file else most_read(model, settings.prewarm_nodes)
    done = 0
    for at in range(0, ids.shape[0], _AT_ONCE):
        batch = ids[at : at + _AT_ONCE]
        if not await _compute(served, model, node_type, batch):
            log.warning("prewarming ended after %d of %d nodes: the store does not answer", done, len(ids))
            break
        done += batch.shape[0]
        await asyncio.sleep(0)
    log.info("prewarmed %s with %d nodes in %.2f s", served.name, done, time.perf_counter() - began)


async def _compute(served: ServedVersion, model: Model, node_type: str, ids: IdArray) -> bool:
    end = time.monotonic() + _PATIENCE_S
    overlays: dict[str, list[Overlay]] = {}
    while True:
        model.supply(overlays)
        try:
            model.final_states({node_type: ids})
            return True
        except RowsAbsent as found:
            if not await _bring(served, found, overlays, end):
                return False
        except HoplineError as error:
            log.warning("prewarming failed: %s", error)
            return False
        finally:
            model.supply({})


async def _bring(
    served: ServedVersion, found: RowsAbsent, overlays: dict[str, list[Overlay]], end: float
) -> bool:
    for node_type, ids in found.absent.items():
        for at in range(0, ids.shape[0], _ROWS_AT_ONCE):
            absent = Absent({node_type: ids[at : at + _ROWS_AT_ONCE]})
            if not await served.bring(absent, overlays, max(0.0, end - time.monotonic())):
                return False
    return True


def most_read(model: Model, count: int) -> IdArray:
    """The `count` nodes of the model's node type that are in-neighbours most often, int64 [<= count].

    A node is read as often as it is somebody's neighbour: by its out-degree.
    """
    node_type = model.spec.head.node_type
    num_nodes = model.graph.nodes[node_type].num_nodes
    degrees = np.zeros(num_nodes, np.int64)
    for key in model.spec.fanouts:
        adjacency = model.graph.edges[key]
        if adjacency.src == node_type:
            degrees += np.bincount(np.asarray(adjacency.indices), minlength=num_nodes)
    count = min(count, num_nodes)
    top: IdArray = (
        np.argpartition(-degrees, count - 1)[:count] if count < num_nodes else np.arange(num_nodes)
    )
    return top[np.argsort(-degrees[top], kind="stable")]


def _listed(model: Model, config: Config) -> IdArray:
    file = config.features.prewarm_file
    assert file is not None
    try:
        lines = file.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"features.prewarm_file: cannot read {file}: {error}") from None
    index = model.graph.nodes[model.spec.head.node_type].ids
    try:
        wanted: list[int] | list[str] = lines if index.kind == "string" else [int(line) for line in lines]
    except ValueError as error:
        raise ConfigError(f"features.prewarm_file: {file}: node ids are integers here: {error}") from None
    limit = config.features.prewarm_nodes or len(wanted)
    ids = index.lookup(wanted[:limit]) if wanted else np.empty(0, np.int64)
    # Ids of an old log that the graph no longer has are no reason not to start.
    _, first = np.unique(ids, return_index=True)
    ids = ids[np.sort(first)]
    return ids[ids >= 0]
