"""Rows of columns of a live graph: numbers by slot, and each distinct text once.

The writer writes a row into a slot that no version reads. A node names the slot of its row (`rows.py`). An
edge names one in the lists of both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hopline.graph.live.ids import texts_of
from hopline.graph.live.memory import ColumnMemory
from hopline.graph.schema import ColumnSchema
from hopline.graph.stored_columns import StoredColumns, numbers_of, type_of
from hopline.types import AnyArray, IdArray


class LiveColumns:
    """Reads the rows of one type.

    Attributes:
        column_schemas: of its table. since: int64 [slots], the version of each row.
    """

    def __init__(self, own: ColumnMemory, columns: Sequence[ColumnSchema]) -> None:
        self.column_schemas = columns
        self.since = own.since
        self._cells = own.cells
        self._texts = texts_of(own) if len(own.num_texts) else None

    def cells(self, slots: IdArray) -> tuple[AnyArray, AnyArray]:
        """Rows by slot: the last arguments of `values_of`."""
        cells = self._cells[slots]
        chosen = cells[:, [at for at, column in enumerate(self.column_schemas) if column.type == "text"]]
        texts = np.full(chosen.shape, None, object)
        given = ~np.isnan(chosen)
        if self._texts is not None and given.any():
            places, at = np.unique(chosen[given].astype(np.int64), return_inverse=True)
            texts[given] = np.array(self._texts.external(places), object)[at]
        return cells, texts


class ColumnWriter:
    """Converts rows of one type to cells, writes their texts, and finds slots for them.

    Args:
        mark: sets used[slot] = 1 for the rows of all versions from one on.
        oldest: the oldest version that a reader may read.
    """

    def __init__(
        self,
        memory: ColumnMemory,
        columns: Sequence[ColumnSchema],
        mark: Callable[[int, NDArray[np.uint8]], None],
        oldest: Callable[[], int],
    ) -> None:
        self._columns, self._mark, self._oldest = memory, mark, oldest
        self._free = np.empty(0, np.int32)
        self._text_columns = [at for at, column in enumerate(columns) if column.type == "text"]
        self._texts = texts_of(memory) if self._text_columns else None

    def load(self, columns: StoredColumns | None) -> None:
        """Write the rows of a snapshot into the first slots."""
        for at, column in enumerate(columns.table.columns if columns is not None else ()):
            cells = self._columns.cells[: len(column), at]
            if type_of(column.type) == "text":
                words = column.combine_chunks()
                places = self._places([*words.dictionary.to_pylist(), None])
                assert places is not None
                cells[:] = places[words.indices.fill_null(-1).to_numpy()]
            else:
                cells[:] = numbers_of(column)

    def find_free(self, oldest: int) -> None:
        """Find the slots that no version from `oldest` on has."""
        used = np.zeros(len(self._columns.since), np.uint8)
        if len(used):
            self._mark(oldest, used)
        self._free = np.flatnonzero(used == 0).astype(np.int32)

    def write(self, cells: AnyArray, texts: AnyArray, version: int) -> NDArray[np.int32] | None:
        """Write rows of columns of a version; returns their slots int32 [n], None if there is no room."""
        if len(cells) > len(self._free):
            self.find_free(self._oldest())
        raw = self._raw(cells, texts)
        if raw is None or len(cells) > len(self._free):
            return None
        slots, self._free = np.split(self._free, [len(cells)])
        self._columns.cells[slots], self._columns.since[slots] = raw, version
        return slots

    def _raw(self, cells: AnyArray, texts: AnyArray) -> AnyArray | None:
        """The cells of a batch, with the places of texts; None if there is no room for the texts."""
        if self._texts is None:
            return cells
        places = self._places(texts.ravel().tolist())
        if places is None:
            return None
        raw = cells.copy()
        raw[:, self._text_columns] = places.reshape(texts.shape)
        return raw

    def _places(self, texts: Sequence[str | None]) -> AnyArray | None:
        """Places of texts, float64 [n], NaN for None; None if there is no room for new texts."""
        assert self._texts is not None
        distinct = list(dict.fromkeys(text for text in texts if text is not None))
        found = self._texts.lookup(distinct)
        new = [distinct[at] for at in np.flatnonzero(found < 0).tolist()]
        count = len(self._texts)
        num_bytes = sum(len(text.encode("utf-8", "surrogatepass")) for text in new)
        if count + len(new) >= len(self._columns.text_offsets) or num_bytes > self._texts.free_bytes():
            return None
        self._texts.add(new, count)
        self._columns.num_texts[0] = count + len(new)
        place = dict(zip(distinct, self._texts.lookup(distinct).tolist(), strict=True))
        return np.array([np.nan if text is None else place[text] for text in texts])
