"""True labels of nodes, for judging a model by its accuracy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hopline.artifact import ModelSpec
from hopline.engine.request_ids import not_found
from hopline.errors import BadRequest
from hopline.graph import Graph
from hopline.graph.id_values import integer_id
from hopline.types import IdArray


def read_labels(path: Path, spec: ModelSpec, graph: Graph) -> IdArray:
    """Read labels of the nodes that a model scores: int64 [N], -1 where unknown.

    Args:
        path: `.npy`, a class number for each node in the graph's order (-1: unknown); or text with a line
            `id,label` for each node that has one, labels as class numbers or as names of classes.

    Raises:
        BadRequest: it cannot be read, or does not fit the model or the graph; the message says where.
        NodeNotFound: ids that the graph does not have.
    """
    if spec.task not in ("multiclass", "binary") or spec.head.kind != "node":
        raise BadRequest(
            f"--labels: {spec.name} is a model for {spec.task} of {spec.head.kind}s; labels are for "
            "multiclass and binary models of nodes, others are evaluated by how far their answers move"
        )
    num_classes = 2 if spec.task == "binary" else spec.head.output_dim
    num_nodes = graph.nodes[spec.head.node_type].num_nodes
    try:
        labels = _array(path, num_nodes) if path.suffix == ".npy" else _lines(path, spec, graph)
    except OSError as error:
        raise BadRequest(f"--labels {path}: {error.strerror or error}") from None
    wrong = np.flatnonzero((labels < -1) | (labels >= num_classes))
    if wrong.size:
        raise BadRequest(
            f"--labels {path}: label {labels[wrong[0]]} of node {wrong[0]}; the model has classes 0 to "
            f"{num_classes - 1} (-1: unknown)"
        )
    if not (labels >= 0).any():
        raise BadRequest(f"--labels {path}: no node has a label")
    return labels


def _array(path: Path, num_nodes: int) -> IdArray:
    try:
        labels = np.load(path)
    except ValueError as error:
        raise BadRequest(f"--labels {path}: not an array of labels: {error}") from None
    if labels.shape != (num_nodes,) or labels.dtype.kind not in "iu":
        raise BadRequest(
            f"--labels {path}: {labels.dtype} {list(labels.shape)}; expected integers [{num_nodes}], one "
            "for each node in the graph's order"
        )
    found: IdArray = labels.astype(np.int64)
    return found


def _lines(path: Path, spec: ModelSpec, graph: Graph) -> IdArray:
    nodes = graph.nodes[spec.head.node_type]
    ids: list[str] = []
    labels: list[int] = []
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise BadRequest(f"--labels {path}: not UTF-8 text: {error}") from None
    for number, line in enumerate(lines, 1):
        node, comma, label = line.rpartition(",")
        if not line.strip() or (number == 1 and label.strip() == "label"):
            continue
        try:
            if not comma:
                raise ValueError
            name = label.strip()
            labels.append(spec.classes.index(name) if name in spec.classes else int(name))
            ids.append(node.strip())
        except ValueError:
            known = f" or one of {', '.join(spec.classes)}" if spec.classes else ""
            raise BadRequest(
                f"--labels {path}, line {number}: {line!r}; expected `id,label`; labels are numbers{known}"
            ) from None
    found = np.full(nodes.num_nodes, -1, np.int64)
    if ids:
        external = ids if nodes.ids.kind == "string" else _integers(path, ids)
        rows = nodes.ids.lookup(external)
        if (rows < 0).any():
            raise not_found(graph.version, external, rows)
        found[rows] = labels
    return found


def _integers(path: Path, ids: list[str]) -> list[int]:
    try:
        return [integer_id(text) for text in ids]
    except ValueError as error:
        raise BadRequest(f"--labels {path}: the graph's ids are integers: {error}") from None
