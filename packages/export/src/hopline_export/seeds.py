"""The seeds of an export: nodes by id, each at a time, maybe with a label."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hopline.engine.model import Model
from hopline.engine.request_ids import ids_then
from hopline.errors import BadRequest
from hopline.graph.cells import Missing, ids, times
from hopline.graph.edge_times import rough_range, time_cut
from hopline.graph.files import open_table
from hopline.graph.text_table import TextFormat
from hopline.graph.typed_columns import typed
from hopline.jobs.batch.goal import known_nodes
from hopline.sampling.keyed import NO_CUT
from hopline.types import IdArray, silent


@dataclass(frozen=True, slots=True)
class SeedColumns:
    """Names of the columns of a file of seeds.

    Attributes:
        id: ids of nodes. label: may be absent.
        time: of the question; without such a column it is the present.
    """

    id: str = "id"
    time: str = "time"
    label: str = "label"


@dataclass(frozen=True, slots=True)
class Seeds:
    """Nodes of one type with times.

    Attributes:
        ids: as in the file, or as the graph's texts.
        rows: int64 [n] global ids.
        as_of: int64 [n] in the graph's unit; NO_CUT for the present. has_times: the file has them.
        labels: an Arrow column, or None.
    """

    ids: Sequence[Any]
    rows: IdArray
    as_of: IdArray
    has_times: bool
    labels: Any


def read_seeds(path: Path, model: Model, columns: SeedColumns) -> Seeds:
    """Read a table: Parquet, Arrow, CSV or other text.

    Raises:
        BadRequest: a column is missing; a time is wrong, or the model reads no times.
        NodeNotFound: ids that are not in the graph. GraphError: the file cannot be read.
    """
    graph, node_type = model.graph, model.spec.head.node_type
    table = open_table(path, TextFormat(), (columns.id, columns.time), silent)
    if table.find(columns.id) is None:
        raise BadRequest(f"--seeds {path}: no column {columns.id!r}; the file has {', '.join(table.names)}")
    has_times, has_labels = (table.find(name) is not None for name in (columns.time, columns.label))
    wanted = [columns.id, *([columns.time] * has_times), *([columns.label] * has_labels)]
    table.load(wanted)
    read: Any = ids(table, columns.id, Missing())
    given = read.tolist() if isinstance(read, np.ndarray) else list(read)
    if graph.nodes[node_type].ids.kind == "string":
        given = [str(each) for each in given]
    rows = known_nodes(graph, node_type, given, f"--seeds {path}, column {columns.id!r}: ")
    as_of = np.full(len(rows), NO_CUT)
    if has_times:
        keys = model.spec.fanouts
        if not (
            any(graph.edges[key].time is not None for key in keys) or model.spec.reads_times or model.past
        ):
            raise BadRequest(
                f"--seeds {path}: nothing that the model reads has times; leave out column {columns.time!r}"
            )
        cut = partial(time_cut, unit=graph.schema.time_unit, times=rough_range(graph, keys))
        as_of = _cuts(times(table, columns.time, Missing()), cut, f"--seeds {path}")
        for moment in np.unique(as_of).tolist() if model.past else ():
            ids_then(model, node_type, rows[as_of == moment], moment, "error")
    labels = typed(table, columns.label, Missing()) if has_labels else None
    return Seeds(given, rows, as_of, has_times, labels)


def _cuts(given: Any, cut: Callable[[Any], int], what: str) -> IdArray:
    moments = given.astype("datetime64[us]").tolist() if given.dtype.kind == "M" else given.tolist()
    found = np.empty(len(moments), np.int64)
    for row, moment in enumerate(moments):
        try:
            found[row] = cut(moment)
        except BadRequest as error:
            raise BadRequest(f"{what}, row {row}: {error}") from None
    return found
