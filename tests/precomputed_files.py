"""Writes precomputed files in the simplest way: the engine computes every row, in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hopline.artifact import read_spec
from hopline.engine.model import load_model
from hopline.engine.precomputed_file import PrecomputedPlan, PrecomputedWriter, model_hash
from hopline.engine.precomputed_file.identity import hashes_of_nodes
from hopline.types import IdArray

_AT_ONCE = 1024


def write_table(
    path: Path,
    folder: Path,
    graph: Any,
    *,
    node_type: str | None = None,
    rows: IdArray | None = None,
    stamp_ms: int | None = None,
    **changes: Any,
) -> Path:
    """Compute final rows and write them to a precomputed file.

    Args:
        path: path of the file.
        folder: folder of the artifact.
        graph: graph of the model.
        node_type: type of the rows; None: the head's type.
        rows: int64 [n], rows to compute; None: all; other rows are missing.
        stamp_ms: time of computation; None: now.
        changes: changed fields of the file's header.

    Returns: the path.
    """
    spec = read_spec(folder)
    model = load_model(folder, spec, graph)
    head = spec.head
    node_type = node_type or head.node_type
    num_nodes = graph.nodes[node_type].num_nodes
    wanted = np.arange(num_nodes) if rows is None else rows
    has_logits = head.kind == "node" and head.file is not None
    state_dim = spec.levels[-1][node_type].state_dim
    about: dict[str, Any] = {
        "model": spec.name,
        "version": spec.version,
        "model_hash": model_hash(folder),
        "graph_version": graph.version,
        "node_type": node_type,
        "num_nodes": num_nodes,
        "state_dim": state_dim,
        "output_dim": head.output_dim if has_logits else 0,
    }
    with PrecomputedWriter(path, PrecomputedPlan(**(about | changes))) as writer:
        hashes = hashes_of_nodes(graph.nodes[node_type].ids, num_nodes)
        for at in range(0, wanted.shape[0], _AT_ONCE):
            ids = wanted[at : at + _AT_ONCE]
            states = model.final_states({node_type: ids})[node_type].copy()
            logits = model.outputs(("logits",), states)["logits"] if has_logits else None
            if rows is None:
                writer.write(at, states, logits, ids=hashes[ids], computed_at=stamp_ms)
                continue
            for i, row in enumerate(ids.tolist()):
                own = None if logits is None else logits[i : i + 1]
                writer.write(row, states[i : i + 1], own, ids=hashes[row : row + 1], computed_at=stamp_ms)
        writer.commit()
    return path
