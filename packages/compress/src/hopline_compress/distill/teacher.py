"""Computes a teacher's answers for every node of a graph: the soft labels that a student learns."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hopline.artifact import ModelSpec, read_spec
from hopline.engine.schema import check_schema
from hopline.errors import BadRequest, SchemaMismatch
from hopline.graph import Graph
from hopline.jobs.batch.report import Advance
from hopline.jobs.batch.run import BatchOptions, BatchRun
from hopline.jobs.batch.sink import TableSchema
from hopline.types import AnyArray, FloatArray

#: Fewer nodes cannot be split into nodes to learn from, to stop by and to evaluate on.
MIN_NODES = 20

_WHY_NOT = {
    "multilabel": "each of its classes is a separate question, and a student has one answer",
    "regression": "it answers numbers, and a student learns to choose a class",
    "embedding": "it answers states, and a student learns to choose a class",
    "several": "a student has one answer; package the model for one of its outputs, task={name: task}",
}


def read_teacher(folder: Path) -> ModelSpec:
    """Read a model that can teach.

    Raises:
        BadRequest: a link, multilabel, regression or embedding model; the message says why.
        ArtifactError: it cannot be read, or is no graph model.
    """
    spec = read_spec(folder)
    spec.check_plain_features("distillation")
    shown = f"{spec.name}/{spec.version}"
    if spec.head.kind == "link":
        raise BadRequest(
            f"{shown} scores pairs of nodes; a student answers for one node from its own row, and there "
            "are no soft labels of one node to learn"
        )
    if spec.task in _WHY_NOT:
        raise BadRequest(
            f"{shown} cannot teach a student: its task is {spec.task}; {_WHY_NOT[spec.task]} (tasks "
            "multiclass and binary can)"
        )
    if not any(stage.inputs for level in spec.levels[1:] for stage in level.values()):
        raise BadRequest(f"{shown} reads no neighbours: it is a student already, or does not need one")
    return spec


def check_fit(spec: ModelSpec, graph: Graph) -> None:
    """Check that a teacher can teach on a graph, and that a student has features to read.

    Raises:
        SchemaMismatch: the teacher was packaged for another schema, or its nodes have no features.
        BadRequest: the graph has too few nodes.
    """
    check_schema(spec, graph)
    node_type = spec.head.node_type
    nodes = graph.nodes[node_type]
    if not nodes.features.shape[1]:
        text = f"node type {node_type!r} has no features; a student needs them"
        raise SchemaMismatch(f"{spec.name}/{spec.version} cannot teach on this graph: {text}", [text])
    if nodes.num_nodes < MIN_NODES:
        raise BadRequest(
            f"the graph has {nodes.num_nodes} nodes of type {node_type!r}; at least {MIN_NODES} are "
            "required: some to learn from, some to stop by and some to evaluate on"
        )


class _Kept:
    """A sink that keeps one column in memory."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.rows: AnyArray = np.empty(0, np.float32)

    def open(self, schema: TableSchema) -> int:
        """Allocate the column."""
        (column,) = (column for column in schema.columns if column.name == self._name)
        self.rows = column.empty(schema.num_rows)
        return 0

    def write(self, begin: int, columns: Mapping[str, AnyArray | list[str]]) -> None:
        """Copy rows."""
        values = np.asarray(columns[self._name])
        self.rows[begin : begin + values.shape[0]] = values

    def commit(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""


def soft_labels(folder: Path, graph: Graph, advance: Advance) -> FloatArray:
    """Probabilities of all nodes, computed by the batch engine: what the server answers, bit for bit.

    Args:
        folder: of the teacher.
        graph: a version of a live graph that is in no folder is saved meanwhile.

    Returns: float32 [N, C], rows sum to 1; for a binary teacher columns are no and yes.
    Raises: BatchError: no disk space for unfinished work.
    """
    kept = _Kept("probabilities")
    with tempfile.TemporaryDirectory(prefix="hopline-distill-") as place:
        options = BatchOptions(outputs=("probabilities",))
        path = graph.path or graph.save(Path(place) / "graph").path
        assert path is not None
        run = BatchRun(folder, path, Path(place) / "run", options, advance=advance)
        run.run(lambda: kept)
    found: FloatArray = kept.rows
    if found.ndim == 1:
        found = np.stack([1 - found, found], axis=1)
    return found
