"""The sink that writes a file of precomputed answers, for `hopline serve --precomputed`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hopline.engine.precomputed_file import PrecomputedPlan, PrecomputedWriter
from hopline.engine.precomputed_file.identity import id_hashes
from hopline.errors import PrecomputedFileError, SinkError
from hopline.graph.schema import quoted
from hopline.jobs.batch.sink import ID_COLUMN, TableSchema, WholeSink
from hopline.types import AnyArray, FloatArray

#: Bytes between progress notes, each of which waits for the disk.
_NOTE_BYTES = 256 << 20


class PrecomputedSink(WholeSink):
    """A sink that writes a file of precomputed answers.

    Args:
        path: of the file; if a run writes several tables, each has its node type before the ending.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: PrecomputedWriter | None = None
        self._has_logits = False
        self._noted = self._written = self._row_bytes = 0

    def open(self, schema: TableSchema) -> int:
        """See `Sink`; resumes an interrupted attempt at the same run."""
        if schema.rows is not None:
            raise SinkError("a precomputed file has rows of all nodes: run without a selection of nodes")
        columns = {column.name: column for column in schema.columns}
        if "state" not in columns:
            raise SinkError(
                f"a precomputed file holds final states; this run has {', '.join(columns)}: add state"
            )
        path = self.path
        if schema.part:
            path = path.with_stem(f"{path.stem}-{quoted(schema.part)}")
        logits = columns.get("logits")
        plan = PrecomputedPlan(
            schema.model,
            schema.version,
            schema.model_hash,
            schema.graph_version,
            schema.node_type,
            schema.num_rows,
            columns["state"].width,
            0 if logits is None else logits.width,
            schema.exact,
        )
        self._has_logits = logits is not None
        self._row_bytes = 4 * (plan.state_dim + plan.output_dim) + 16
        try:
            self._writer = PrecomputedWriter(path, plan, schema.run_id)
        except PrecomputedFileError as error:
            raise SinkError(str(error)) from error
        self._noted = self._written = self._writer.num_done
        return self._writer.num_done

    def write(self, begin: int, columns: Mapping[str, AnyArray | list[str]]) -> None:
        """See `Sink`."""
        assert self._writer is not None
        ids = columns[ID_COLUMN]
        state: FloatArray = np.asarray(columns["state"], np.float32)
        logits = np.asarray(columns["logits"], np.float32) if self._has_logits else None
        try:
            self._writer.write(begin, state, logits, ids=id_hashes(ids))
            self._written = begin + len(state)
            if (self._written - self._noted) * self._row_bytes >= _NOTE_BYTES:
                self._writer.checkpoint(self._written)
                self._noted = self._written
        except PrecomputedFileError as error:
            raise SinkError(str(error)) from error

    def commit(self) -> None:
        """See `Sink`."""
        assert self._writer is not None
        try:
            self._writer.commit()
        except PrecomputedFileError as error:
            raise SinkError(str(error)) from error

    def abort(self) -> None:
        """Keep the written part for a later attempt at the same run."""
        if self._writer is not None:
            self._writer.abort(keep=True)


def from_address(address: str) -> PrecomputedSink:
    """The sink of `precomputed:PATH`, or of a path that ends in `.precomputed`.

    Raises:
        SinkError: the address names no file.
    """
    path = address.removeprefix("precomputed:")
    if not path:
        raise SinkError("precomputed: names no file; write precomputed:PATH")
    return PrecomputedSink(Path(path))
