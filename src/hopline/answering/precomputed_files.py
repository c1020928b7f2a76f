"""Precomputed files of a version, and the check that their artifact and graph are the served ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.artifact import ModelSpec
from hopline.config.schema import PrecomputedConfig
from hopline.engine.final_rows import FinalRows
from hopline.engine.model import has_changed_at
from hopline.engine.precomputed import (
    OTHER_GRAPH_ADVICE,
    STORE_ADVICE,
    Unchanged,
    check_fits,
    on_other_graph,
)
from hopline.engine.precomputed_file import PrecomputedFile, model_hash
from hopline.engine.precomputed_file.header import PrecomputedPlan
from hopline.engine.precomputed_file.identity import hashes_of_nodes
from hopline.engine.precomputed_file.reader import read_header
from hopline.errors import ConfigError, PrecomputedFileError
from hopline.process.cgroup import available_bytes
from hopline.types import IdArray

log = logging.getLogger(__name__)

#: Share of the available memory up to which a file is read at load.
_PREFAULTED = 0.25


def check_named(files: Sequence[str], models: Sequence[str]) -> None:
    """Check that each file exists, and is about a served model.

    Raises: ConfigError: it is about none of them, or cannot be opened.
    """
    for name in files:
        try:
            plan = read_header(Path(name)).plan
        except PrecomputedFileError as error:
            raise ConfigError(f"precomputed.file: {error}") from None
        if plan.model not in models:
            raise ConfigError(
                f"precomputed.file: {name} is about model {plan.model!r}, which is not served; served are "
                f"{', '.join(models)}"
            )


def precomputed_rows(
    files: Sequence[Path],
    folder: Path,
    spec: ModelSpec,
    graph: Any,
    settings: PrecomputedConfig,
    *,
    from_store: bool = False,
) -> dict[str, FinalRows]:
    """The precomputed rows that a version reads: node type -> rows.

    Args:
        files: of any models.
        folder: of the artifact.
        graph: that it answers about, a snapshot or a live view.
        from_store: the model reads features of a feature store. A file was computed from those of the
            graph folder, and is handled as one of another snapshot.

    Raises:
        PrecomputedFileError: a file of this model and version that does not fit, and what differs; or it is
            damaged.
    """
    found: dict[str, FinalRows] = {}
    misfits: list[str] = []
    own_hash = model_hash(folder) if files else ""
    for path in files:
        file = PrecomputedFile.open(path)
        plan = file.header.plan
        if plan.model != spec.name:
            continue
        if plan.version != spec.version:
            log.warning("%s is about %s/%s; not used for %s", path, plan.model, plan.version, spec.version)
            continue
        check_fits(file, spec, own_hash)
        rows, misfit = _fitted(path, file, spec, graph, settings, from_store)
        if rows is not None:
            if rows.file.pages.shape[0] <= _PREFAULTED * available_bytes():
                rows.populate()  # the first touch of a page costs more than its row
                rows.file.verify()
            found[plan.node_type] = rows
        else:
            misfits.append(misfit)
    missing = [each for each in misfits if each]
    if missing and not found:
        raise PrecomputedFileError(missing[0])
    return found


def _fitted(
    path: Path,
    file: PrecomputedFile,
    spec: ModelSpec,
    graph: Any,
    settings: PrecomputedConfig,
    from_store: bool,
) -> tuple[FinalRows | None, str]:
    """The rows, or why there are none ("" where that is wanted so)."""
    plan = file.header.plan
    ttl_s = settings.ttl_s
    fits, unchanged = _same_graph(plan, spec, graph)
    if fits and not from_store:
        return FinalRows(file, spec, ttl_s=ttl_s, unchanged=unchanged), ""
    differ = on_other_graph(path, plan, spec.name, graph.version)
    if fits:
        differ = (
            f"{path} was computed from the features of the graph folder; {spec.name} reads them from "
            "features.store"
        )
    if settings.stale == "compute":
        log.warning("%s: every answer is computed (precomputed.stale)", differ)
        return None, ""
    if settings.stale == "refuse":
        return None, f"{differ}: {STORE_ADVICE if fits else OTHER_GRAPH_ADVICE}"
    known = _known_rows(file, graph)
    num_known = int(np.count_nonzero(known))
    if plan.num_nodes and not num_known:
        return (
            None,
            f"{differ}, and its rows cannot be matched to that graph: it was written without external ids",
        )
    log.warning("%s: %d of its rows are served, labelled stale_row", differ, num_known)
    return FinalRows(file, spec, ttl_s=ttl_s, is_stale=True, rows_known=known), ""


def _same_graph(plan: PrecomputedPlan, spec: ModelSpec, graph: Any) -> tuple[bool, Unchanged | None]:
    """(True if rows of a file are valid on a graph, the rows that have changed)."""
    if not getattr(graph, "is_live", False):
        return plan.graph_version == graph.version, None
    since = _since(plan.graph_version, graph)
    # It does not know models whose changes it does not track.
    if since is None or not has_changed_at(spec, graph):
        return False, None
    changed_at = graph.nodes[plan.node_type].changed_at[spec.reach]

    def unchanged(ids: IdArray) -> NDArray[np.bool_]:
        held: NDArray[np.bool_] = changed_at[ids] <= since
        return held

    return True, unchanged


def _since(version: str, graph: Any) -> int | None:
    """The count of changes at a version of a live graph; None if this host cannot tell it.

    A host does not know how it counted earlier offsets of its stream, and no future version.
    """
    lineage, _, sequence = version.partition("+")
    if lineage != graph.memory.plan.lineage:
        return None
    if not sequence:
        return 0
    if graph.offset.is_named:
        return graph.clock.version if version == graph.version else None
    since = int(sequence) if sequence.isdecimal() else None
    return since if since is not None and since <= graph.clock.version else None


def _known_rows(file: PrecomputedFile, graph: Any) -> NDArray[np.bool_]:
    """Rows whose node has the same number in another graph: bool [N]."""
    plan = file.header.plan
    nodes = graph.nodes[plan.node_type]
    count = min(plan.num_nodes, nodes.num_nodes)
    known = np.zeros(plan.num_nodes, np.bool_)
    known[:count] = file.ids[:count] == hashes_of_nodes(nodes.ids, count)
    return known


def replaced(rows: Mapping[str, FinalRows]) -> bool:
    """True if one of the files has a successor under its path."""
    return any(each.file.is_replaced() for each in rows.values())
