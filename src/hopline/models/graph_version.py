"""Makes versions of graph models, with their regions of the state cache, graphs and precomputed answers."""

from __future__ import annotations

import asyncio
import dataclasses
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
from hopline.answering.precomputed_files import precomputed_rows
from hopline.answering.queued import QueuedVersion
from hopline.answering.unit import Unit
from hopline.artifact import ModelSpec, read_spec
from hopline.config.schema import Config
from hopline.engine.final_rows import FinalRows
from hopline.engine.model import Model, StateCachePlan, load_model
from hopline.engine.schema import check_schema
from hopline.engine.source import Absent, FetchedRows, RowsAbsent, RowSource
from hopline.errors import ConfigError, HoplineError
from hopline.features.answer import Reason
from hopline.files import expanded
from hopline.graph import Graph
from hopline.graph.id_values import integer_id
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
    if inputs.files is not None:
        load.files, load.identity = inputs.files, inputs.files.identity
    if inputs.sources is not None and spec.encoders:
        sources = await inputs.sources.encoded(folder, spec, inputs.graph, tools.regions)
        load.hold_async(sources.give_back)
        inputs = dataclasses.replace(inputs, sources=sources)
    load.served = served = await tools.in_thread(_made, load, folder, spec, limits, inputs, tools)
    served.files = inputs.files
    await tools.in_thread(served.warm_up)
    computer = served.computer
    assert isinstance(computer, GraphComputer)
    if computer.reads_store:
        await computer.warm_up_reading()
    settings, is_live = tools.config.features, isinstance(computer.model.graph, LiveView)
    if not is_live and (settings.prewarm_nodes or settings.prewarm_file is not None):
        await prewarm(computer, tools.config)
    if not spec.heads and (files := _precomputed_files(limits, unit, tools)):
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
    ages = inputs.sources is not None  # a state expires with a store's rows that it was computed from
    plan, arena = regions.take(
        key, tools.share, lambda share: StateCachePlan(spec, graph, share, config.worker.count, ages=ages)
    )
    load.hold(lambda: regions.give_back(key))
    populator.add(arena.mapping)
    load.hold_async(lambda: tools.in_thread(populator.remove, arena.mapping))
    state_caches = plan.build(arena, config.worker.index)
    store, sources = inputs.store, inputs.sources
    rows: Mapping[str, RowSource] = {} if store is None else store.rows
    rows = rows if sources is None else sources.l1_rows
    loaded = load_model(folder, spec, graph, state_caches, config.compute.threads, rows)
    edges = None if store is None else store.fetcher(loaded.edge_columns)
    return GraphComputer(loaded, config, sources, load.unit.id, edges)


def _region_key(load: Load, spec: ModelSpec, graph: Graph | LiveView) -> str:
    """Owner of a region: another artifact in the same folder has other rows, and other files have, too."""
    version = f"live {graph.memory.plan.lineage}" if isinstance(graph, LiveView) else graph.version
    digest = hashlib.sha256(msgspec.json.encode([spec, version, load.identity])).hexdigest()[:16]
    return f"{load}/{digest}"


def _precomputed_files(limits: ModelLimits, unit: Unit, tools: Tools) -> list[Path]:
    """Files that may have final rows of a unit: those of its snapshot, else those of the settings."""
    if (snapshot := tools.inputs.snapshot(unit)) is not None and snapshot.precomputed:
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
        stored = bool(config.features.store)
        return precomputed_rows(
            files, folder, model.spec, model.graph, config.precomputed, from_store=stored
        )

    rows = await tools.in_thread(open_rows)
    counter = functools.partial(rows_total, served.name, served.version)
    most = config.limits.max_nodes_per_request
    served.look_up = LookUp(
        served, served.enqueue, computer, rows, counter, tools.executor, tools.recorders, most
    )
    served.look_up.follow(open_rows)


async def prewarm(computer: GraphComputer, config: Config) -> None:
    """Fill L1 and the state caches, before the first request, with the nodes that requests read most.

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
