"""Makes versions of graph models, with their regions of the state cache, graphs and precomputed answers."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hopline.answering.graph_computer import GraphComputer
from hopline.answering.limits import ModelLimits
from hopline.answering.precomputed_files import precomputed_rows
from hopline.answering.queued import QueuedVersion
from hopline.answering.unit import Unit
from hopline.artifact import ModelSpec, read_spec
from hopline.engine.final_rows import FinalRows
from hopline.engine.model import StateCachePlan, load_model
from hopline.engine.schema import check_schema
from hopline.engine.source import RowSource
from hopline.files import expanded
from hopline.graph import Graph
from hopline.graph.live.view import LiveView
from hopline.models.load import Load
from hopline.models.model_inputs import ModelInputs
from hopline.models.tools import Tools
from hopline.runtimes.processor import warn_of_overflow


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
    await _prewarm(computer, tools)
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


async def _prewarm(computer: GraphComputer, tools: Tools) -> None:
    settings = tools.config.features
    if not isinstance(computer.model.graph, LiveView) and (
        settings.prewarm_nodes or settings.prewarm_file is not None
    ):
        from hopline.answering.prewarm import prewarm

        await prewarm(computer, tools.config)
