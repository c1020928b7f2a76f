"""Nodes that a file lists by their external ids, one a line."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hopline.errors import ConfigError
from hopline.graph import IdIndex
from hopline.graph.id_values import integer_id
from hopline.types import IdArray


def listed_nodes(file: Path, index: IdIndex, setting: str, limit: int = 0) -> IdArray:
    """Global ids of listed nodes, distinct, in the order of their first line: int64 [n].

    Ids that the graph does not have are left out: an old list is no reason not to start.

    Args:
        setting: that names the file.
        limit: lines that are read; 0 for all.

    Raises: ConfigError: it cannot be read, or has no ids of the index's kind.
    """
    try:
        lines = file.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{setting}: cannot read {file}: {error}") from None
    try:
        wanted: list[int] | list[str] = (
            lines if index.kind == "string" else [integer_id(line) for line in lines]
        )
    except ValueError as error:
        raise ConfigError(f"{setting}: {file}: node ids are integers here: {error}") from None
    ids = index.lookup(wanted[: limit or len(wanted)]) if wanted else np.empty(0, np.int64)
    _, first = np.unique(ids, return_index=True)
    ids = ids[np.sort(first)]
    return ids[ids >= 0]
