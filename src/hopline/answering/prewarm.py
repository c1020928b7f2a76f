"""Fills L1 and the state caches before the first request, with the nodes that requests read most."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping

import numpy as np

from hopline.answering.graph_computer import GraphComputer
from hopline.config.schema import Config
from hopline.engine.model import Model
from hopline.engine.source import Absent, FetchedRows, RowsAbsent
from hopline.errors import ConfigError, HoplineError
from hopline.features.answer import Reason
from hopline.graph.id_values import integer_id
from hopline.graph.store_columns import FetchedEdges
from hopline.types import IdArray

log = logging.getLogger(__name__)

#: Nodes computed together, and the longest wait for their rows.
_AT_ONCE = 1024
#: Fewer where edges lie in a graph store: each hop of them is one read.
_AT_ONCE_OF_STORE = 64
_PATIENCE_S = 5.0
#: Batches in a row that the store may fail to supply before prewarming gives up on it.
_MAX_FAILURES = 3
#: Reasons that are the row's own: the store answered, and does not have it.
_OF_THE_ROW = {Reason.MISSING.label, Reason.INVALID.label}
#: Rows of one fetch: as many as requests ask for together, since a fetch that takes longer than
#: `features.fetch_timeout_ms` counts as the store's failure and would open its breaker.
_ROWS_AT_ONCE = 1024


async def prewarm(computer: GraphComputer, config: Config) -> None:
    """Compute the most read nodes of a version, which keeps what that passes through.

    Neither a store that does not answer nor a row that it lacks is a reason not to start: what is missing
    is fetched on demand. A batch that reads such a row still leaves the other rows in L1.

    Raises: ConfigError: `features.prewarm_file` cannot be read.
    """
    settings = config.features
    for node_type, model in computer.model.by_type.items():
        began = time.perf_counter()
        if settings.prewarm_file:
            ids = await asyncio.to_thread(_listed, model, config)
        elif model.is_stored:
            raise ConfigError(
                "features.prewarm_nodes: which nodes are read most is not known for a graph in a graph "
                "store; list them in features.prewarm_file"
            )
        else:
            ids = await asyncio.to_thread(most_read, model, settings.prewarm_nodes)
        done = failures = 0
        why: Counter[str] = Counter()
        step = _AT_ONCE_OF_STORE if model.is_stored else _AT_ONCE
        for at in range(0, ids.shape[0], step):
            batch = ids[at : at + step]
            lacking = await _compute(computer, model, node_type, batch)
            why.update(lacking)
            done += 0 if lacking else batch.shape[0]
            failures = failures + 1 if lacking.keys() - _OF_THE_ROW else 0
            if failures == _MAX_FAILURES:
                log.warning("prewarming ended at %d of %d nodes: the store does not answer", at, len(ids))
                break
            await asyncio.sleep(0)
        missing = f"; rows that could not be had: {dict(why)}" if why else ""
        took = time.perf_counter() - began
        log.info("prewarmed %s with %d nodes in %.2f s%s", computer.name, done, took, missing)


async def _compute(
    computer: GraphComputer, model: Model, node_type: str, ids: IdArray
) -> Mapping[str, int]:
    """Compute nodes, which keeps their rows; what kept them from being computed, as rows by reason."""
    end = time.monotonic() + _PATIENCE_S
    fetched_rows: dict[str, list[FetchedRows]] = {}
    fetched_edges: dict[str, list[FetchedEdges]] = {}
    while True:
        model.supply(fetched_rows, fetched_edges=fetched_edges)
        try:
            model.final_states({node_type: ids})
            return {}
        except RowsAbsent as found:
            if found.edges:
                assert computer.fetcher is not None
                failed = await computer.fetcher.fetch_edges(Absent({}, found.edges), fetched_edges)
                if failed is not None:
                    return {failed.code: ids.shape[0]}
                continue
            lacking = await _fetch(computer, found, fetched_rows, end)
            if lacking:
                return lacking
        except HoplineError as error:
            log.warning("prewarming failed: %s", error)
            return {error.code: 1}
        finally:
            model.supply({})


async def _fetch(
    computer: GraphComputer, found: RowsAbsent, fetched_rows: dict[str, list[FetchedRows]], end: float
) -> Mapping[str, int]:
    """Fetch what is absent, in pieces; rows that did not come, by reason."""
    why: Counter[str] = Counter()
    for node_type, ids in found.absent.items():
        for at in range(0, ids.shape[0], _ROWS_AT_ONCE):
            absent = Absent({node_type: ids[at : at + _ROWS_AT_ONCE]})
            assert computer.fetcher is not None
            left_s = max(0.0, end - time.monotonic())
            why.update(await computer.fetcher.fetch(absent, fetched_rows, left_s))
            if why.keys() - _OF_THE_ROW:
                return why
    return why


def most_read(model: Model, count: int) -> IdArray:
    """The `count` nodes of the model's node type that are in-neighbours most often, int64 [<= count].

    A node is read as often as it is a neighbour: by its out-degree.
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
    top = np.setdiff1d(top, model.graph.nodes[node_type].ids.removed)
    return top[np.argsort(-degrees[top], kind="stable")]


def _listed(model: Model, config: Config) -> IdArray:
    """Global ids of listed nodes, distinct, in the order of their first line: int64 [n].

    Ids that the graph does not have are left out: an old list is no reason not to start.
    """
    file, limit = config.features.prewarm_file, config.features.prewarm_nodes
    assert file is not None
    index = model.graph.nodes[model.spec.head.node_type].ids
    try:
        lines = file.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"features.prewarm_file: cannot read {file}: {error}") from None
    try:
        wanted: list[int] | list[str] = (
            lines if index.kind == "string" else [integer_id(line) for line in lines]
        )
    except ValueError as error:
        raise ConfigError(f"features.prewarm_file: {file}: node ids are integers here: {error}") from None
    ids = index.lookup(wanted[: limit or len(wanted)]) if wanted else np.empty(0, np.int64)
    _, first = np.unique(ids, return_index=True)
    ids = ids[np.sort(first)]
    return ids[ids >= 0]
