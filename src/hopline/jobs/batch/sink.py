"""The interface of sinks, which receive the results of a batch run.

A run writes one *table*: rows in ascending order, each with an id (of nodes the external one) and the
requested outputs. Nothing of it may be visible before `commit`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from hopline.errors import SinkError
from hopline.types import AnyArray, IdArray

#: The column of every table that holds external ids.
ID_COLUMN = "id"


@dataclass(frozen=True)
class Column:
    """One column of a table, besides the ids.

    Attributes:
        name: "probabilities", "label", "embedding", "logits" or "state" (the final level's row, as the
            engine's state cache holds it); of edges also "from", "to" and "time".
        dtype: NumPy's name: "float32" or "int64"; or "string": a list of str.
        width: values in a row; 0 for a scalar.
    """

    name: str
    dtype: str
    width: int

    def empty(self, num_rows: int) -> AnyArray:
        """An array for rows: [num_rows, width], or [num_rows] for a scalar."""
        dtype = object if self.dtype == "string" else self.dtype
        return np.empty((num_rows, self.width) if self.width else num_rows, dtype)

    @property
    def num_bytes(self) -> int:
        """About the bytes of a row."""
        return (4 if self.dtype == "float32" else 8) * max(1, self.width)


@dataclass(frozen=True)
class TableSchema:
    """The table that a run will write.

    Attributes:
        run_id: hex; equal for two attempts at the same run (same model, graph, nodes and options), and
            different otherwise.
        model, version: the model's name and version.
        model_hash: hex sha256 of the artifact's model.json, which holds the hashes of its files.
        graph_version: of the snapshot.
        node_type: of the rows; of edges, their edge type.
        part: "" if the run writes one table; the node type if it writes one for each of several
            (link models between two types). A sink appends it to its address.
        num_rows: rows of the table.
        id_kind: "range" and "int": ids are int64 [n]; "string": ids are a list of n str.
        columns: in the requested order, without the ids.
        rows: None if row i of the table is row i of the graph's node type (the whole graph); else
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

    @property
    def all_columns(self) -> tuple[Column, ...]:
        """The ids and the columns."""
        return Column(ID_COLUMN, "string" if self.id_kind == "string" else "int64", 0), *self.columns


class WholeSink:
    """A sink of rows by their numbers: it gets those of removed nodes too."""


class Sink(Protocol):
    """Receives one table; calls come from one thread: open, write…, then commit or abort."""

    def open(self, schema: TableSchema) -> int:
        """Prepare to receive the table.

        Returns: number of rows [0, n) that an interrupted attempt at the same run (`run_id`) has already
            written durably: writing resumes at n. A sink that does not know returns 0.
        Raises:
            SinkError: the place cannot be written, or holds something that must not be replaced.
        """
        ...

    def write(self, begin: int, columns: Mapping[str, AnyArray | list[str]]) -> None:
        """Write rows [begin, begin + n); each call continues where the one before ended.

        Args:
            columns: `all_columns` of the schema, [n, width] or [n]. The arrays are valid only during the
                call.
        """
        ...

    def commit(self) -> None:
        """Make the table durable and then visible, in one step; an earlier table is replaced."""
        ...

    def abort(self) -> None:
        """Handle a run that ended early. Nothing becomes visible; data for a later attempt may stay."""
        ...


@contextlib.contextmanager
def writing(where: object) -> Iterator[None]:
    """Turn an error of the disk into one of the run. Raises: SinkError: `where` cannot be written."""
    try:
        yield
    except OSError as error:
        raise SinkError(
            f"{where} cannot be written: {error.strerror or error}; computed states are kept: fix this "
            "and start the same command again"
        ) from error


def check_folder(folder: Path, mark: str) -> None:
    """Check that a folder may be replaced. Raises: SinkError: it exists without a file `mark`."""
    if folder.exists() and not (folder / mark).is_file():
        raise SinkError(f"{folder} exists and is not a table of a batch run; choose another folder")
