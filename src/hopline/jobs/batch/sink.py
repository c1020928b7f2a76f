"""Where the results of a batch run go: what a sink is told and what it must do.

A run writes one *table*: rows in ascending order, each of which has the node's external id and the
outputs that were asked for. Nothing of it may be visible before `commit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hopline.types import AnyArray, IdArray

#: The column of every table that holds external ids.
ID_COLUMN = "id"


@dataclass(frozen=True)
class Column:
    """One column of a table beside the ids.

    Attributes:
        name: "probabilities", "label", "embedding", "logits" or "state" (the final level's row, as the
            engine's tables keep it).
        dtype: NumPy's name: "float32" or "int64".
        width: values in a row; 0 for a scalar.
    """

    name: str
    dtype: str
    width: int

    def empty(self, num_rows: int) -> AnyArray:
        """An array for rows: [num_rows, width], or [num_rows] for a scalar."""
        return np.empty((num_rows, self.width) if self.width else num_rows, self.dtype)


@dataclass(frozen=True)
class TableSchema:
    """What a run is about to write.

    Attributes:
        run_id: hex; equal for two attempts at the same run (same model, graph, nodes and options), and
            different otherwise.
        model, version: the model's name and version.
        model_hash: hex sha256 of the artifact's model.json, which holds the hashes of its files.
        graph_version: of the snapshot.
        node_type: whose rows these are.
        part: "" where the run writes one table; the node type where it writes one for each of several
            (link models between two types): a sink appends it to its address.
        num_rows: rows of the table.
        id_kind: "range" and "int": ids are int64 [n]; "string": ids are a list of n str.
        columns: in the order asked for, without the ids.
        rows: None where row i of the table is row i of the graph's node type (the whole graph); else
            int64 [num_rows] the graph's rows.
        exact: all neighbours were read, not the model's fanouts.
        classes: names of the classes, may be empty.
    """

    run_id: str
    model: str
    version: str
    model_hash: str
    graph_version: str
    node_type: str
    part: str
    num_rows: int
    id_kind: str
    columns: tuple[Column, ...]
    rows: IdArray | None = None
    exact: bool = False
    classes: tuple[str, ...] = ()


class Sink(Protocol):
    """Takes one table; calls come from one thread: open, write…, then commit or abort."""

    def open(self, schema: TableSchema) -> int:
        """Get ready to take the table.

        Returns: rows [0, n) that an interrupted attempt at the same run (`run_id`) has already brought
            here durably: writing goes on at n. A sink that cannot tell returns 0.
        Raises:
            SinkError: the place cannot be written, or holds something that must not be replaced.
        """
        ...

    def write(self, begin: int, columns: Mapping[str, AnyArray | list[str]]) -> None:
        """Take rows [begin, begin + n); each call goes on where the one before ended.

        Args:
            columns: `id` (int64 [n], or a list of n str), and every column of the schema, [n, width] or
                [n]. The arrays are the sink's only during the call.
        """
        ...

    def commit(self) -> None:
        """Make the table durable and then visible, in one step: what was there before is replaced."""
        ...

    def abort(self) -> None:
        """The run ended early. Nothing becomes visible; what a later attempt can use may stay."""
        ...
