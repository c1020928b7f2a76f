"""Feature rows in a PyG `FeatureStore`: any subclass, including `Data` and `HeteroData`.

`pyg://package.module:attr` is an instance, or a callable without arguments that returns one. A group is a
PyG group (a node type; "node" for a store without groups), its rows are those of the tensor `x`, and the
ids are row numbers.

PyG does not define thread safety, so one thread calls the store, one call at a time. PyG also does not
define what a store does for missing rows: some raise, some return fewer rows. A short result is never
accepted; its ids are requested again in halves until the missing rows are known. Read-only: rows are
written with PyG.
"""

from __future__ import annotations

import importlib
from operator import attrgetter
from typing import Any

import numpy as np

from hopline.errors import ConfigError, FeatureGroupNotFound, FeatureStoreError
from hopline.features.base import DTYPES, FeatureGroup, FetchedRows
from hopline.features.ids import RowNumbers
from hopline.features.rows import not_found
from hopline.types import ExternalIds, FloatArray, IdArray
from hopline_stores.foreign import ClientStore, RowsById, is_transient

_ATTR = "x"
#: Name of the only group of a store without groups, as everywhere in Hopline.
_ONLY_GROUP = "node"


class PygStore(ClientStore):
    """A PyG feature store.

    Args:
        url: pyg://package.module:attr
        setting: setting of the URL, for errors.

    Raises:
        ConfigError: the URL has no object.
    """

    kind = "pyg"

    def __init__(self, url: str, setting: str = "features.store") -> None:
        self._target = url.partition("://")[2]
        module, _, attribute = self._target.partition(":")
        if not module or not attribute:
            raise ConfigError(f"{setting}: {url!r} must be pyg://<module>:<attribute>")
        super().__init__(f"PyG store {self._target}", setting, 1)
        self._pyg: Any = None
        #: Whether there is one group, without a name.
        self._is_nameless = False
        self._num_rows: dict[str, int] = {}

    async def close(self) -> None:
        """Release the store."""
        self._threads.close()
        self._pyg = None
        self._num_rows.clear()

    async def describe(self, group: str) -> FeatureGroup:
        """See `FeatureStore.describe`; features have no names, and the dtype of non-floats is float32."""
        return await self._run(f"describing {group!r}", self._describe, group)

    async def fetch(self, group: FeatureGroup, ids: ExternalIds) -> FetchedRows:
        """See `FeatureStore.fetch`. An id that is not a row number is not found."""
        return await self._run(f"reading {group.name!r}", self._fetch, group, ids)

    def _connect(self) -> None:
        try:
            from torch_geometric.data import Data
            from torch_geometric.data import FeatureStore as Pyg
        except ImportError as error:
            raise ConfigError(
                f"{self._setting}: pyg:// needs torch and torch-geometric; install hopline[train]"
            ) from error
        module, _, attribute = self._target.partition(":")
        try:
            named = attrgetter(attribute)(importlib.import_module(module))
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"{self._setting}: pyg://{self._target}: {error}") from error
        # `Data` is callable too: check for a store first.
        if not isinstance(named, Pyg) and callable(named):
            named = named()
        if not isinstance(named, Pyg):
            raise ConfigError(
                f"{self._setting}: pyg://{self._target} is a {type(named).__name__}, "
                "neither a torch_geometric.data.FeatureStore nor a function that returns one"
            )
        self._is_nameless = isinstance(named, Data)
        self._pyg = named

    def _probe(self) -> object:
        return self._groups()

    def _groups(self) -> list[str]:
        """Return the names of the groups that have the tensor."""
        attrs = [attr for attr in self._pyg.get_all_tensor_attrs() if attr.attr_name == _ATTR]
        names = [attr.group_name if attr.is_set("group_name") else None for attr in attrs]
        self._is_nameless = self._is_nameless or None in names
        # Edge types, whose names are tuples, are not used.
        return [_ONLY_GROUP if name is None else name for name in names if not isinstance(name, tuple)]

    def _attr(self, group: str, index: Any) -> Any:
        """Return PyG's attribute for the rows `index` of a group."""
        from torch_geometric.data import TensorAttr

        return TensorAttr(None if self._is_nameless else group, _ATTR, index)

    def _size(self, group: str) -> tuple[int, int]:
        """Return (rows, numbers per row). Checks the group first: `HeteroData` would create it."""
        known = self._groups()
        if group not in known:
            self._num_rows.pop(group, None)
            raise FeatureGroupNotFound(not_found(self.kind, group, known))
        size = self._pyg.get_tensor_size(self._attr(group, None))
        if size is None:
            raise FeatureGroupNotFound(
                not_found(self.kind, group, [name for name in known if name != group])
            )
        if len(size) not in (1, 2):
            raise FeatureStoreError(
                f"{self._name}: rows of group {group!r} must be vectors; the tensor is {list(size)}"
            )
        self._num_rows[group] = int(size[0])
        return int(size[0]), int(size[1]) if len(size) == 2 else 1

    def _describe(self, name: str) -> FeatureGroup:
        num_rows, dim = self._size(name)
        row = self._get(name, np.arange(min(num_rows, 1)))
        dtype = str(row.dtype).removeprefix("torch.")
        return FeatureGroup(name, dim, dtype if dtype in DTYPES else "float32")

    def _get(self, group: str, numbers: IdArray) -> Any:
        """Return the tensor's rows from the store: a tensor [m or less, dim]."""
        import torch

        rows = self._pyg.get_tensor(self._attr(group, torch.from_numpy(numbers)))
        if rows is None:
            raise IndexError(f"no tensor {_ATTR!r} in group {group!r}")
        return torch.as_tensor(rows)

    def _fetch(self, group: FeatureGroup, ids: ExternalIds) -> FetchedRows:
        if group.name not in self._num_rows:
            self._size(group.name)
        wanted = RowNumbers(self._num_rows[group.name]).find(ids)
        if (wanted < 0).any():  # the tensor may have grown
            wanted = RowNumbers(self._size(group.name)[0]).find(ids)
        distinct, where = np.unique(wanted, return_inverse=True)
        read = _Rows(group, distinct)
        self._read(read, int(np.searchsorted(distinct, 0)), len(distinct))
        return read.answer(where.reshape(-1), ids)

    def _read(self, read: _Rows, begin: int, end: int) -> None:
        """Read the distinct rows begin … end - 1."""
        if begin == end:
            return
        try:
            rows = self._get(read.group.name, read.distinct[begin:end])
        except (IndexError, KeyError) as error:
            if is_transient(error):
                raise
            rows = None  # some are missing
        if rows is not None and len(rows) == end - begin:
            read.take(begin, rows.detach().float().cpu().numpy().reshape(end - begin, -1))
        elif end - begin > 1:
            middle = (begin + end) // 2
            self._read(read, begin, middle)
            self._read(read, middle, end)
        elif rows is not None and len(rows) > 1:
            read.problems[begin] = f"the store has {len(rows)} rows with this number"


class _Rows(RowsById):
    """Rows of distinct ascending numbers; -1, which is first, is for ids without a row."""

    def __init__(self, group: FeatureGroup, distinct: IdArray) -> None:
        super().__init__(group, len(distinct))
        self.distinct = distinct

    def take(self, begin: int, rows: FloatArray) -> None:
        """Store rows, float32 [n, any], for the distinct numbers from position `begin` on."""
        places = range(begin, begin + len(rows))
        if rows.shape[1] == self.group.dim:
            self.values[places] = rows
            self.found[places] = True
        else:
            why = f"the row has {rows.shape[1]} numbers, not {self.group.dim}"
            self.problems |= dict.fromkeys(places, why)
