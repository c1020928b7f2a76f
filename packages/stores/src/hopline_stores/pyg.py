"""Feature rows in a PyG `FeatureStore`: any subclass, including `Data` and `HeteroData`.

`pyg://package.module:attr` is an instance, or a callable without arguments that returns one. A group is a
PyG group (a node type; "node" for a store without groups), its rows are those of the tensor `x`, and the
ids are row numbers.

PyG does not define thread safety, so one thread calls the store, one call at a time. PyG also does not
define what a store does for missing rows: some raise, some return fewer rows. A short result is never
accepted; its ids are requested again in halves until the missing rows are known.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from hopline.errors import ConfigError, FeatureGroupNotFound, FeatureStoreError
from hopline.features.base import DTYPES, MAX_PROBLEMS, FeatureGroup, FeatureStore, FetchedRows
from hopline.features.ids import RowNumbers, listed
from hopline.features.rows import check_group, check_same, checked_values, not_found
from hopline.types import ExternalIds, FloatArray, IdArray
from hopline_stores.foreign import Threads, is_transient, translated

_ATTR = "x"
#: Name of the only group of a store without groups, as everywhere in Hopline.
_ONLY_GROUP = "node"

_T = TypeVar("_T")


class PygStore(FeatureStore):
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
        self._setting = setting
        module, _, attribute = self._target.partition(":")
        if not module or not attribute:
            raise ConfigError(f"{setting}: {url!r} must be pyg://<module>:<attribute>")
        self._thread = Threads(self._name, self.kind, 1)
        self._pyg: Any = None
        #: Whether there is one group, without a name.
        self._is_nameless = False
        self._num_rows: dict[str, int] = {}

    async def open(self) -> None:
        """Import the module, and call the object if it is not a store.

        Raises:
            ConfigError: PyG or the module is missing, or this is not a PyG feature store.
        """
        self._thread.open()
        try:
            self._pyg = await self._run("opening", self._load)
            await self._run("listing its tensors", self._groups)
        except FeatureStoreError as error:
            await self.close()
            raise ConfigError(f"{self._setting}: {error}") from error
        except ConfigError:
            await self.close()
            raise

    async def close(self) -> None:
        """Release the store."""
        self._thread.close()
        self._pyg = None
        self._num_rows.clear()

    async def describe(self, group: str) -> FeatureGroup:
        """See `FeatureStore.describe`; features have no names, and the dtype of non-floats is float32."""
        return await self._run(f"describing {group!r}", self._describe, group)

    async def fetch(self, group: FeatureGroup, ids: ExternalIds) -> FetchedRows:
        """See `FeatureStore.fetch`. An id that is not a row number is not found."""
        return await self._run(f"reading {group.name!r}", self._fetch, group, ids)

    async def create(self, group: FeatureGroup) -> None:
        """See `FeatureStore.create`: creates a tensor without rows; old rows are deleted.

        Raises:
            FeatureStoreError: the group has feature names, which PyG cannot store.
        """
        check_group(group)
        if group.feature_names:
            raise FeatureStoreError(
                f"{self._name} cannot store feature names; omit those of group {group.name!r}"
            )
        await self._run(f"creating {group.name!r}", self._create, group)

    async def write(self, group: FeatureGroup, ids: ExternalIds, values: FloatArray) -> None:
        """See `FeatureStore.write`. Writes the whole tensor, since stores treat partial writes differently.

        Raises:
            FeatureStoreError: an id is not a row number, or would leave a gap after the last row.
        """
        raw = checked_values(group, ids, values)
        await self._run(f"writing {group.name!r}", self._write, group, ids, raw)

    async def _run(self, doing: str, function: Callable[..., _T], *args: Any) -> _T:
        """Call `function` in the thread, and translate the store's errors."""
        try:
            return await self._thread.run(partial(function, *args))
        except (FeatureStoreError, ConfigError):
            raise
        except Exception as error:  # errors of any third-party store
            raise translated(error, f"{self._name}: {doing}") from error

    def _load(self) -> Any:
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
        return named

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
        return read.answer(where, ids)

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
            read.refuse(begin, f"the store has {len(rows)} rows with this number")

    def _create(self, group: FeatureGroup) -> None:
        import torch

        if group.name in self._groups():
            self._pyg.remove_tensor(self._attr(group.name, None))
        if self._is_nameless and group.name != _ONLY_GROUP:
            raise FeatureStoreError(f"{self._name} has only the group {_ONLY_GROUP!r}, not {group.name!r}")
        empty = torch.empty((0, group.dim), dtype=getattr(torch, group.dtype))
        self._put(group.name, empty)

    def _write(self, group: FeatureGroup, ids: ExternalIds, raw: Any) -> None:
        import torch

        check_same(group, self._describe(group.name))
        if not len(raw):
            return
        num_rows = self._num_rows[group.name]
        numbers = RowNumbers(num_rows + len(raw)).find(ids)
        new = np.unique(numbers[numbers >= num_rows])
        if (numbers < 0).any() or (len(new) and new[-1] != num_rows + len(new) - 1):
            strange = [id for id, number in zip(listed(ids), numbers, strict=True) if number < 0]
            raise FeatureStoreError(
                f"{self._name}: group {group.name!r} has rows 0 … {num_rows - 1}; "
                f"ids must be among them or continue without a gap, unlike {(strange or new.tolist())[:5]}"
            )
        old = torch.as_tensor(self._pyg.get_tensor(self._attr(group.name, None)))
        if old.dtype != getattr(torch, group.dtype):
            raise FeatureStoreError(f"{self._name}: group {group.name!r} is {old.dtype}; write it with PyG")
        whole = np.empty((num_rows + len(new), group.dim), raw.dtype)
        whole[:num_rows] = old.detach().cpu().numpy().reshape(num_rows, group.dim)
        whole[numbers] = raw
        if len(new):
            self._pyg.remove_tensor(self._attr(group.name, None))
        self._put(group.name, torch.from_numpy(whole))

    def _put(self, group: str, whole: Any) -> None:
        if not self._pyg.put_tensor(whole, self._attr(group, None)):
            raise FeatureStoreError(f"{self._name} did not accept the tensor of group {group!r}")
        self._num_rows[group] = len(whole)

    @property
    def _name(self) -> str:
        return f"PyG store {self._target}"


class _Rows:
    """Rows of distinct ascending numbers; -1, which is first, is for ids without a row."""

    def __init__(self, group: FeatureGroup, distinct: IdArray) -> None:
        self.group = group
        self.distinct = distinct
        self._values: FloatArray = np.zeros((len(distinct), group.dim), np.float32)
        self._found = np.zeros(len(distinct), np.bool_)
        self._problems: dict[int, str] = {}

    def take(self, begin: int, rows: FloatArray) -> None:
        """Store rows, float32 [n, any], for the distinct numbers from position `begin` on."""
        if rows.shape[1] == self.group.dim:
            self._values[begin : begin + len(rows)] = rows
            self._found[begin : begin + len(rows)] = True
            return
        for place in range(begin, begin + len(rows)):
            self.refuse(place, f"the row has {rows.shape[1]} numbers, not {self.group.dim}")

    def refuse(self, place: int, why: str) -> None:
        self._problems[place] = why

    def answer(self, where: IdArray, ids: ExternalIds) -> FetchedRows:
        """Return the rows at places `where`, int64 [n]."""
        places = where.reshape(-1)
        invalid = [
            (id, at) for id, at in zip(listed(ids), places.tolist(), strict=True) if at in self._problems
        ]
        problems = tuple(
            f"{self.group.name} {id}: {self._problems[at]}" for id, at in invalid[:MAX_PROBLEMS]
        )
        return FetchedRows(self._values[places], self._found[places], problems, len(invalid))
