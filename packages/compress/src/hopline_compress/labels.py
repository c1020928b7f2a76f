"""Known classes of nodes, from a file: distillation and quantisation evaluate by them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from hopline.errors import BadRequest, NodeNotFound
from hopline.graph import IdIndex
from hopline.graph.id_values import integer_id
from hopline.types import IdArray

#: Names that a message lists.
_NAMED = 10


def read_labels(path: Path, ids: IdIndex, classes: tuple[str, ...], num_classes: int) -> IdArray:
    """Read labels.

    Args:
        path: `.npy`, integers [N] by row of the graph, -1 where unknown; or CSV of two columns, node id and
            class (a number or one of `classes`), with or without a line of names.
        ids: of the nodes.
        num_classes: of the model.

    Returns: int64 [N], -1 where unknown.
    Raises:
        BadRequest: it cannot be read, has another length than the graph, a class that the model lacks, or
            two classes for one node.
        NodeNotFound: ids that are not in the graph.
    """
    try:
        labels = _array(path, len(ids)) if path.suffix == ".npy" else _table(path, ids, classes)
    except OSError as error:
        raise BadRequest(f"--labels {path}: {error.strerror or error}") from None
    wrong = np.unique(labels[(labels >= num_classes) | (labels < -1)])
    if wrong.shape[0]:
        listed = ", ".join(map(str, wrong[:_NAMED].tolist()))
        raise BadRequest(
            f"--labels {path}: classes {listed} are unknown; the model has 0 to {num_classes - 1}"
        )
    if not (labels >= 0).any():
        raise BadRequest(
            f"--labels {path}: no node has a class; leave --labels out for an unlabelled graph"
        )
    return labels


def _array(path: Path, num_nodes: int) -> IdArray:
    try:
        found = np.load(path)
    except ValueError as error:
        raise BadRequest(f"--labels {path}: not an array: {error}") from None
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise BadRequest(f"--labels {path}: {found.dtype} {list(found.shape)}; expected integers [nodes]")
    if found.shape[0] != num_nodes:
        raise BadRequest(
            f"--labels {path}: {found.shape[0]} labels, but the graph has {num_nodes} nodes; a .npy file "
            "has one label for each row, -1 if unknown (a CSV file names nodes by id)"
        )
    labels: IdArray = found.astype(np.int64)
    return labels


def _table(path: Path, ids: IdIndex, classes: tuple[str, ...]) -> IdArray:
    numbers = {name: number for number, name in enumerate(classes)}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [(line, row) for line, row in enumerate(csv.reader(file), 1) if row]
    except UnicodeDecodeError as error:
        raise BadRequest(f"--labels {path}: not UTF-8 text: {error}") from None
    is_text = ids.kind == "string"
    names: list[Any] = []
    values: list[int] = []
    for at, (line, row) in enumerate(rows):
        if len(row) != 2:
            raise BadRequest(f"--labels {path}, line {line}: {len(row)} columns; expected id,class")
        name, text = row[0].strip(), row[1].strip()
        value = numbers[text] if text in numbers else _integer(text)
        key = name if is_text else _integer(name)
        if value is None or key is None:
            names_no_node = key is None or (is_text and ids.lookup([name])[0] < 0)
            if at == 0 and value is None and names_no_node:
                continue  # the header line
            if key is None:
                raise BadRequest(f"--labels {path}, line {line}: {name!r} is not an integer id")
            known = f"; known are {', '.join(classes[:_NAMED])}" if classes else ""
            raise BadRequest(f"--labels {path}, line {line}: class {text!r} is unknown{known}")
        names.append(key)
        values.append(value)
    found = ids.lookup(names) if names else np.empty(0, np.int64)
    unknown = [names[k] for k in np.flatnonzero(found < 0).tolist()]
    if unknown:
        listed = ", ".join(map(repr, unknown[:_NAMED]))
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        raise NodeNotFound(f"--labels {path}: the graph has no nodes {listed}{more}", unknown)
    labels = np.full(len(ids), -1, np.int64)
    labels[found] = values
    other = np.flatnonzero(labels[found] != values)
    if len(other):
        name = names[other[0]]
        raise BadRequest(
            f"--labels {path}: node {name!r} has the classes {values[other[0]]} and "
            f"{labels[found[other[0]]]}; list each node once ({len(other)} lines differ from a later one)"
        )
    return labels


def _integer(text: str) -> int | None:
    try:
        return integer_id(text)
    except ValueError:
        return None
