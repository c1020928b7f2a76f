"""A file of node ids: the nodes that a run scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hopline.errors import BadRequest
from hopline.graph.id_values import integer_id
from hopline.types import ExternalIds


def read_nodes(path: Path, id_kind: str) -> ExternalIds:
    """Read ids, in the order of the file.

    Args:
        path: `.npy` (one dimension), or text with one id a line; empty lines are left out.
        id_kind: "string", or else ids are integers.

    Raises:
        BadRequest: it cannot be read, is empty, or a line is not an integer (the message names the first
            such line).
    """
    try:
        ids = _array(path) if path.suffix == ".npy" else _lines(path, id_kind)
    except OSError as error:
        raise BadRequest(f"--nodes {path}: {error.strerror or error}") from None
    if not ids:
        raise BadRequest(f"--nodes {path}: the file has no ids")
    return ids


def _array(path: Path) -> ExternalIds:
    try:
        ids = np.load(path)
    except ValueError as error:
        raise BadRequest(f"--nodes {path}: not an array of ids: {error}") from None
    if ids.ndim != 1 or ids.dtype.kind not in "iuU":
        raise BadRequest(
            f"--nodes {path}: {ids.dtype} {list(ids.shape)}; expected integers or strings of one dimension"
        )
    listed: ExternalIds = ids.tolist()
    return listed


def _lines(path: Path, id_kind: str) -> ExternalIds:
    try:
        # Not splitlines(): an id may hold one of Unicode's other line ends.
        lines = path.read_text("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise BadRequest(f"--nodes {path}: not UTF-8 text: {error}") from None
    texts = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if id_kind == "string":
        return [text for _, text in texts]
    ids = []
    for number, text in texts:
        try:
            ids.append(integer_id(text))
        except ValueError:
            raise BadRequest(f"--nodes {path}, line {number}: {text!r} is not an integer id") from None
    return ids
