"""Makes versions of graph models, with their regions of the state cache, graphs and precomputed answers."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from hopline.answering.graph_computer import GraphComputer
from hopline.answering.limits import ModelLimits
from hopline.answering.listed_nodes import listed_nodes
from hopline.answering.precomputed_files import precomputed_rows
from hopline.answering.queued import QueuedVersion
from hopline.answering.unit import Unit
from hopline.artifact import ModelSpec, read_spec
from hopline.config.schema import Config
from hopline.engine.ego import EgoModel
from hopline.engine.final_rows import FinalRows
from hopline.engine.model import Model, StateCachePlan, load_model
from hopline.engine.schema import check_schema
from hopline.engine.source import Absent, FetchedRows, RowsAbsent, RowSource
from hopline.errors import ConfigError, HoplineError
from hopline.features.answer import Reason
from hopline.files import expanded
from hopline.graph import Graph
from hopline.graph.live.view import LiveView
from hopline.graph.store_columns import FetchedEdges
from hopline.models.load import Load
from hopline.models.model_inputs import ModelInputs
from hopline.models.tools import Tools
from hopline.runtimes.processor import warn_of_overflow
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


async def load_graph_version(load: Load, folder: Path, limits: ModelLimits, tools: Tools) -> None:
    """As `ModelKind.load`, for graph models."""
    unit = load.unit
    spec = await tools.in_thread(functools.partial(read_spec, folder, verify=False))
    warn_of_overflow(spec)
    inputs = await tools.inputs.take(unit)
    load.hold_async(lambda: tools.inputs.give_back(unit))
    load.served = served = await tools.in_thread(_made, load, folder, spec, limits, inputs, tools)
    await tools.in_thread(served.warm_up)
    computer = served.computer
    assert isinstance(computer, GraphComputer)
    if isinstance(computer.model, EgoModel):
        await computer.warm_up_here()
    if computer.reads_store:
        await computer.warm_up_reading()
    await prewarm(computer, tools.config)
    if files := _precomputed_files(limits, unit, tools):
        await _look_up(served, computer, folder, files, tools)


def _made(
    load: Load, folder: Path, spec: ModelSpec, limits: ModelLimits, inputs: ModelInputs, tools: Tools
) -> QueuedVersion:
    # each model pins its own versions of a live graph
    graph = inputs.graph.another() if isinstance(inputs.graph, LiveView) else inputs.graph
    try:
        computer = _computer(graph, load, folder, spec, inputs, tools)
        return tools.queued(computer, limits)
    except BaseException:
        if isinstance(graph, LiveView):
            graph.close()
        raise


def _computer(
    graph: Graph | LiveView, load: Load, folder: Path, spec: ModelSpec, inputs: ModelInputs, tools: Tools
) -> GraphComputer:
    check_schema(spec, graph)  # before anything reads what the graph may not have
    config, regions, populator = tools.config, tools.regions, tools.populator
    key = _region_key(load, spec, graph)
    # A state expires with the feature rows of a store that it was computed from.
    ages = inputs.sources is not None
    plan, arena = regions.take(
        key, tools.share, lambda share: StateCachePlan(spec, graph, share, config.worker.count, ages=ages)
    )
    load.hold(lambda: regions.give_back(key))
    populator.add(arena.mapping)
    load.hold_async(lambda: tools.in_thread(populator.remove, arena.mapping))
    state_caches = plan.build(arena, config.worker.index)
    sources = inputs.sources
    rows: Mapping[str, RowSource] = {} if inputs.store is None else inputs.store.rows
    l1_rows = rows if sources is None else sources.l1_rows
    loaded = load_model(folder, spec, graph, state_caches, config.compute.threads, l1_rows)
    if isinstance(loaded, EgoModel):
        fallbacks = tools.metrics.counter(
            "hopline_compiled_fallbacks_total",
            "Loads of a compiled model whose eager program runs instead.",
            ("model", "version"),
        )
        fallbacks(load.model, load.unit.id).inc(bool(loaded.why_eager))
    edges = None
    if inputs.store is not None and isinstance(loaded, Model):
        edges = inputs.store.fetcher(loaded.edge_columns)
    return GraphComputer(loaded, config, sources, load.unit.id, edges)


def _region_key(load: Load, spec: ModelSpec, graph: Graph | LiveView) -> str:
    """Owner of a region: another artifact in the same folder has other rows."""
    version = f"live {graph.memory.plan.lineage}" if isinstance(graph, LiveView) else graph.version
    digest = hashlib.sha256(msgspec.json.encode(spec) + version.encode()).hexdigest()[:16]
    return f"{load}/{digest}"


def _precomputed_files(limits: ModelLimits, unit: Unit, tools: Tools) -> list[Path]:
    """Files that may have final rows of a unit: those of its snapshot, else those of the settings."""
    snapshot = tools.inputs.snapshot(unit)
    if snapshot is not None and snapshot.precomputed:
        return snapshot.precomputed
    own = [name.strip() for name in limits.precomputed_file.split(",") if name.strip()]
    return [expanded(name, "precomputed.file") for name in own or tools.config.precomputed.file]


async def _look_up(
    served: QueuedVersion, computer: GraphComputer, folder: Path, files: list[Path], tools: Tools
) -> None:
    from hopline.answering.lookup import LookUp

    model, config = computer.model, tools.config
    rows_total = tools.metrics.counter(
        "hopline_precomputed_rows_total",
        "Rows asked for of models with a precomputed file, by what became of them.",
        ("model", "version", "outcome"),
    )

    def open_rows() -> dict[str, FinalRows]:
        from_store = bool(config.features.store)
        return precomputed_rows(
            files, folder, model.spec, model.graph, config.precomputed, from_store=from_store
        )

    rows = await tools.in_thread(open_rows)
    counter = functools.partial(rows_total, served.name, served.version)
    most = config.limits.max_nodes_per_request
    served.look_up = LookUp(
        served, served.enqueue, computer, rows, counter, tools.executor, tools.recorders, most
    )
    served.look_up.follow(open_rows)


async def prewarm(computer: GraphComputer, config: Config) -> None:
    """Fill L1 and the state caches before the first request: compute the nodes that are read most.

    Neither a store that does not answer nor a row that it lacks is a reason not to start: what is missing
    is fetched on demand. A batch that reads such a row still leaves the other rows in L1.

    Raises:
        ConfigError: `features.prewarm_file` cannot be read.
    """
    model = computer.model
    settings = config.features
    if not isinstance(model, Model) or isinstance(model.graph, LiveView):
        return
    if not (settings.prewarm_nodes or settings.prewarm_file):
        return
    began = time.perf_counter()
    node_type = model.spec.head.node_type
    if settings.prewarm_file:
        ids = await asyncio.to_thread(_listed, model, config)
    elif model.is_stored:
        raise ConfigError(
            "features.prewarm_nodes: which nodes are read most is not known for a graph in a graph store; "
            "list them in features.prewarm_file"
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
    log.info(
        "prewarmed %s with %d nodes in %.2f s%s", computer.name, done, time.perf_counter() - began, missing
    )


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
                failed = await computer.fetch_edges(Absent({}, found.edges), fetched_edges)
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
            why.update(await computer.fetch_rows(absent, fetched_rows, max(0.0, end - time.monotonic())))
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
    return top[np.argsort(-degrees[top], kind="stable")]


def _listed(model: Model, config: Config) -> IdArray:
    settings = config.features
    assert settings.prewarm_file is not None
    index = model.graph.nodes[model.spec.head.node_type].ids
    return listed_nodes(settings.prewarm_file, index, "features.prewarm_file", settings.prewarm_nodes)
