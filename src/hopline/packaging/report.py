"""The report of packaging, and what a request for one node costs on this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

import numpy as np

from hopline.artifact import ModelSpec
from hopline.engine.execute import execute
from hopline.engine.model import Model, load_model
from hopline.engine.plan import make_plan
from hopline.types import IdArray

if TYPE_CHECKING:
    from hopline.graph import Graph

#: Requests that are measured, and such before them, which compile.
_REQUESTS, _BEFORE = 25, 5
#: A stage with less than this share of a request's time is not worth advice.
_SHARE = 0.1
#: In-neighbours of a row, and columns of a neighbour's row, above which these come first.
_MANY, _WIDE = 100, 256


@dataclass(frozen=True, slots=True)
class StageFigures:
    """One line of the report.

    Attributes:
        name: "<level>.<node type>", or "head".
        inputs: what the stage reads, in words.
        state_dim: columns that it produces.
        num_bytes: of its ONNX file, 0 if it has no file.
        rules: of each layer that it computes, how its neighbours are read: "reduce" or "attention" by the
            engine, or for each edge by its own code ("general stage").
        rows, edges: that a request for one node computes and reads here, as a mean. us: microseconds of
            processor time that they take on this machine, the median. All are 0 before `explain`.
        advice: what would make it faster; "" for nothing that matters.
    """

    name: str
    inputs: tuple[str, ...]
    state_dim: int
    num_bytes: int
    rules: tuple[str, ...] = ()
    rows: float = 0.0
    edges: float = 0.0
    us: float = 0.0
    advice: str = ""


@dataclass(frozen=True, slots=True)
class PackageReport:
    """The packaged model.

    Attributes:
        path: the artifact folder `<repository>/<name>/<version>`.
        spec: as written to model.json.
        stages: figures of each stage.
        notes: for the user: how forward was called, what the answers rely on, and so on.
        seconds: how long packaging took.
    """

    path: Path
    spec: ModelSpec
    stages: tuple[StageFigures, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def num_bytes(self) -> int:
        """Size of the artifact folder."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())

    def explain(self, graph: Graph) -> PackageReport:
        """The same with the costs of a request for one node, at the fanouts and without a state cache.

        Each stage runs on its own, for nodes from all over the graph.

        Raises: SchemaMismatch: the model is not for this graph.
        """
        model, head = load_model(self.path, self.spec, graph), self.spec.head
        ends = (head.node_type, head.dst_node_type)[: 1 + (head.kind == "link")]
        seen = []
        for part in np.linspace(0.0, 1.0, _BEFORE + _REQUESTS):
            wanted = {name: np.array([int(part * (graph.nodes[name].num_nodes - 1))]) for name in ends}
            seen.append(_measured(model, wanted))
        found = []
        for line in self.stages:
            figures = [each.get(line.name, (0, 0, 0.0)) for each in seen[_BEFORE:]]
            rows, edges, us = zip(*figures, strict=True)
            found.append(replace(line, rows=fmean(rows), edges=fmean(edges), us=median(us)))
        least = _SHARE * sum(line.us for line in found)
        advice = [_advice(line, self.spec) if line.us > least else "" for line in found]
        advised = [replace(line, advice=text) for line, text in zip(found, advice, strict=True)]
        return replace(self, stages=tuple(advised))


def _measured(model: Model, wanted: Mapping[str, IdArray]) -> dict[str, tuple[int, int, float]]:
    """Rows, edges and microseconds of each stage for some nodes."""
    plan = make_plan(model.levels, model.num_hops, wanted)
    found = {}
    for need in (need for needs in reversed(plan.needs) for need in needs):
        began = time.thread_time()
        execute(replace(plan, needs=[[need]]), model.features, keep=False)
        took = 1e6 * (time.thread_time() - began)
        edges = sum(block.num_edges for block in need.blocks)
        found[f"{need.level.level}.{need.level.node_type}"] = need.ids.shape[0], edges, took
    return found


def _advice(line: StageFigures, spec: ModelSpec) -> str:
    """A way to make a stage faster, in words."""
    level, _, node_type = line.name.partition(".")
    if level == "0":
        return f"its code runs for {line.rows:.0f} rows: the state cache keeps them for later requests"
    near, inputs = line.edges / line.rows, spec.levels[int(level)][node_type].inputs
    if near > _MANY:
        return f"a row reads {near:.0f} neighbours: give its hop a smaller fanout, or max_degree"
    sources = {entry.edge_type.split("__")[0] for entry in inputs if entry.edge_type}
    width = max((spec.levels[int(level) - 1][name].state_dim for name in sources), default=0)
    if width > _WIDE:
        return f"a neighbour's row has {width} columns: a narrower layer below it, or fewer heads"
    rules = " ".join(line.rules)
    if "general stage" in rules:
        return "its code computes each message: a sum or mean of unchanged x_j is a reduction"
    if "attention" in rules:
        return f"attention to {line.edges:.0f} neighbours: fewer heads, or a mean in one of the layers"
    return "a smaller fanout reads fewer neighbours; the state cache keeps rows for later requests"


def stage_figures(
    folder: Path, spec: ModelSpec, rules: Mapping[str, tuple[str, ...]]
) -> tuple[StageFigures, ...]:
    """The figures of every stage and the head, lowest level first.

    Args:
        rules: as in `StageFigures`, by the name of the stage.
    """
    lines = []
    for level, stages in enumerate(spec.levels):
        for node_type, stage in stages.items():
            name = f"{level}.{node_type}"
            words = tuple(
                " ".join(filter(None, [item.reduce or item.kind, item.edge_type])) for item in stage.inputs
            )
            size = 0 if stage.file is None else (folder / stage.file).stat().st_size
            lines.append(StageFigures(name, words, stage.state_dim, size, rules.get(name, ())))
    head = spec.head
    if head.file is not None:
        size = (folder / head.file).stat().st_size
        lines.append(StageFigures("head", (head.kind,), head.output_dim, size))
    return tuple(lines)
