"""Rows in Redis, Valkey or a Redis Cluster, as raw little-endian bytes; one round trip per fetch.

    <prefix><group>:<id>      a row: dim numbers of the group's dtype; of columns a hash, a field for each
    <prefix><group>:schema    the schema: JSON of the FeatureGroup and its hash
    <prefix>groups            a set of the groups' names
    <prefix>#<name>           a note (`published.py`)

Any writer of such keys can feed Hopline. This file handles keys, schemas and rows; the protocol is in
`resp.py`, connections in `connection.py` and `server.py`, clusters in `cluster.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from hopline.errors import FeatureGroupNotFound, FeatureStoreError
from hopline.features.base import MAX_PROBLEMS, ColumnRow, FeatureGroup, FetchedRows
from hopline.features.ids import listed
from hopline.features.rows import check_group, checked_values, not_found
from hopline.types import UNREADABLE, ExternalIds, FloatArray
from hopline_stores.columns import is_null, kinds_of, no_null_text, rows_of, text_of, value_of
from hopline_stores.published import PublishingStore
from hopline_stores.redis import resp
from hopline_stores.redis.cluster import backend_of, errors_of_opening
from hopline_stores.redis.connection import HashReplies, Replies, refusal
from hopline_stores.redis.resp import Bytes, Keys
from hopline_stores.redis.url import RedisUrl

_OPEN_S = 5.0
#: Bytes of rows that are sent before waiting for responses: enough for throughput, and few enough for
#: requests of others in between.
_CHUNK_BYTES = 2**20
#: Rows of columns that are sent before waiting for responses: each is a script of the server.
_HASHES = 1000
#: Field of a row whose columns are all null, since a hash has at least one.
_EMPTY = ""
#: Writes a note if it has the expected content; "" means no note, for both values.
_SWAP = """
local found = redis.call('GET', KEYS[1]) or ''
if found ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[2]) end
return 1
"""


class RedisStore(PublishingStore):
    """Rows in one Redis or Valkey server.

    Args:
        url: see `RedisUrl`.
        setting: setting of the URL, for errors.
    """

    kind = "redis"

    def __init__(self, url: str, setting: str = "features.store") -> None:
        self._url = RedisUrl.parse(url, setting)
        self._ttl_ms = None if self._url.ttl_s is None else max(1, round(1000 * self._url.ttl_s))
        self._backend = backend_of(self._url)
        self._prefixes: dict[str, Bytes] = {}

    async def open(self) -> None:
        """See `FeatureStore.open`. Raises also FeatureStoreUnavailable while the server loads its data."""
        _compile()
        with errors_of_opening(self._url.setting):
            await self._backend.open(_OPEN_S)

    async def close(self) -> None:
        """Close all connections."""
        await self._backend.close()

    async def describe(self, group: str) -> FeatureGroup:
        """See `FeatureStore.describe`."""
        stored = await self._call(f"{group}:schema", "GET")
        if stored is None:
            raise FeatureGroupNotFound(not_found(self.kind, group, await self.group_names()))
        try:
            described = msgspec.json.decode(stored, type=_Described)
            found = FeatureGroup(
                group, described.dim, described.dtype, described.feature_names, described.types or ()
            )
            check_group(found)
        except (*UNREADABLE, FeatureStoreError) as error:
            raise FeatureStoreError(
                f"{self.kind}: the schema of group {group!r} is damaged: {error}"
            ) from None
        if described.hash not in ("", found.hash):
            raise FeatureStoreError(
                f"{self.kind}: the schema of group {group!r} is damaged: its hash is {found.hash}, but "
                f"{described.hash} is stored"
            )
        return found

    async def fetch(self, group: FeatureGroup, ids: ExternalIds) -> FetchedRows:
        """See `FeatureStore.fetch`; rows with a different length than the group's are invalid."""
        if not len(ids):
            return FetchedRows(np.zeros((0, group.dim), np.float32), np.zeros(0, bool))
        replies = await self._backend.read(self._keys(group.name, ids), group.row_bytes)
        return _rows(group, ids, replies.check(self._url.kind))

    async def create(self, group: FeatureGroup) -> None:
        """See `FeatureStore.create`. Rows with another schema are deleted."""
        check_group(group)
        try:
            stored = (await self.describe(group.name)).hash
        except FeatureGroupNotFound:
            stored = group.hash
        except FeatureStoreError as error:
            if type(error) is not FeatureStoreError:
                raise
            stored = ""  # damaged
        schema = _Described(
            group.name,
            group.dim,
            group.dtype,
            group.feature_names,
            group.hash,
            group.types or msgspec.UNSET,
        )
        await self._call(f"{group.name}:schema", "SET", msgspec.json.encode(schema))
        await self._call("groups", "SADD", group.name)
        if stored != group.hash:
            await self._delete_rows(group.name)

    async def write(self, group: FeatureGroup, ids: ExternalIds, values: FloatArray) -> None:
        """See `FeatureStore.write`; about a megabyte at a time."""
        rows = checked_values(group, ids, values)
        if not len(rows):
            return
        keys = self._keys(group.name, ids)
        step = max(1, _CHUNK_BYTES // group.row_bytes)
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            (await self._backend.write(keys.pick(part), rows[part], self._ttl_ms)).check(self._url.kind)

    async def fetch_columns(self, group: FeatureGroup, ids: ExternalIds) -> Sequence[ColumnRow]:
        """See `FeatureStore.fetch_columns`."""
        columns = kinds_of(group)

        def payload(some: Keys, _: Any, asking: bool) -> memoryview:
            return resp.hmget_each(some, [*columns, _EMPTY], asking=asking)

        if not len(ids):
            return []
        replies = await self._backend.send(self._keys(group.name, ids), 0, payload, HashReplies)
        assert isinstance(replies, HashReplies)
        wrong = {row: text for row, text in replies.errors.items() if text.startswith("WRONGTYPE")}
        if failed := [text for row, text in replies.errors.items() if row not in wrong]:
            raise refusal(self._url.kind, failed[0])
        found = [
            "is no hash: another writer has numbers of a row there"
            if at in wrong
            else _columns(columns, values)
            for at, values in enumerate(replies.values)
        ]
        return rows_of(group, found, self._url.absent_is_null)

    async def write_columns(
        self, group: FeatureGroup, ids: ExternalIds, columns: Mapping[str, Sequence[Any]]
    ) -> None:
        """See `FeatureStore.write_columns`; some rows at a time."""
        rows = [self._fields(group, values) for values in zip(*columns.values(), strict=True)]
        keys = self._keys(group.name, ids)
        for first in range(0, len(rows), _HASHES):
            some = rows[first : first + _HASHES]

            def payload(keys: Keys, where: Any, asking: bool, some: Any = some) -> memoryview:
                chosen = some if isinstance(where, slice) else [some[at] for at in where.tolist()]
                return resp.replace_each(keys, chosen, self._ttl_ms, asking=asking)

            part = keys.pick(slice(first, first + _HASHES))
            (await self._backend.send(part, 0, payload, HashReplies)).check(self._url.kind)

    def _fields(self, group: FeatureGroup, values: Sequence[Any]) -> list[bytes]:
        """Fields and values of a hash, in turns."""
        found: list[bytes] = []
        for (name, kind), value in zip(group.columns.items(), values, strict=True):
            if is_null(value):
                if self._url.absent_is_null:
                    continue
                if kind == "text":
                    raise no_null_text(group, name, kind)
            text = "" if is_null(value) else text_of(kind, value)
            found += (name.encode(), text.encode("utf-8", "surrogatepass"))
        return found or [_EMPTY.encode(), b""]

    async def note(self, name: str) -> bytes | None:
        """See `PublishingStore.note`."""
        found: bytes | None = await self._call(f"#{name}", "GET")
        return found

    async def swap_note(self, name: str, expected: bytes | None, content: bytes | None) -> bool:
        """See `PublishingStore.swap_note`: one script on the server."""
        key = f"{self._url.prefix}#{name}".encode()
        words = ("EVAL", _SWAP, 1, key, expected or b"", content or b"")
        return bool(await self._backend.call_for(key, *words))

    async def group_names(self) -> list[str]:
        """See `FeatureStore.group_names`."""
        return [name.decode("utf-8", "replace") for name in await self._call("groups", "SMEMBERS")]

    async def remove(self, group: FeatureGroup, ids: ExternalIds) -> None:
        """See `FeatureStore.remove`."""
        if len(ids):
            (await self._backend.unlink(self._keys(group.name, ids))).check(self._url.kind)

    async def forget(self, group: str) -> None:
        """See `PublishingStore.forget`."""
        await self._call(f"{group}:schema", "DEL")
        await self._call("groups", "SREM", group)

    async def incarnation(self) -> str:
        """See `PublishingStore.incarnation`: each start of a server has its own run id."""
        found = []
        for server in self._backend.servers():
            info = bytes(await server.call("INFO", "server"))
            found += [line.decode() for line in info.split(b"\r\n") if line.startswith(b"run_id:")]
        return " ".join(sorted(found))

    def _keys(self, group: str, ids: ExternalIds) -> Keys:
        prefix = self._prefixes.get(group)
        if prefix is None:
            prefix = self._prefixes[group] = resp.to_bytes(f"{self._url.prefix}{group}:".encode())
        return resp.keys_of(prefix, ids)

    async def _call(self, name: str, verb: str, *words: bytes | str) -> Any:
        key = f"{self._url.prefix}{name}".encode()
        return await self._backend.call_for(key, verb, key, *words)

    async def _delete_rows(self, group: str) -> None:
        schema = f"{self._url.prefix}{group}:schema".encode()
        pattern = re.sub(r"([*?\[\]\\^])", r"\\\1", f"{self._url.prefix}{group}:") + "*"
        for server in self._backend.servers():
            cursor = b"0"
            while True:
                cursor, keys = await server.call("SCAN", cursor, "MATCH", pattern, "COUNT", 10_000)
                await server.unlink(resp.keys_from([key for key in keys if key != schema]))
                if cursor == b"0":
                    break


class RedisClusterStore(RedisStore):
    """Rows in a Redis or Valkey cluster, distributed over its servers by id."""

    kind = "redis_cluster"


class _Described(msgspec.Struct):
    """The stored form of a schema."""

    name: str
    dim: int
    dtype: str = "float32"
    feature_names: tuple[str, ...] = ()
    hash: str = ""
    types: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


def _columns(columns: Mapping[str, str], values: Sequence[bytes | None]) -> ColumnRow:
    """A hash as a row; None for no hash."""
    if not any(value is not None for value in values):
        return None
    found: dict[str, Any] = {}
    for (name, kind), value in zip(columns.items(), values, strict=False):
        if value is not None:
            try:
                found[name] = value_of(kind, value.decode())
            except UnicodeDecodeError:
                return f"column {name!r} is not UTF-8"
            except ValueError as error:
                return f"column {name!r}: {error}"
    return found


def _rows(group: FeatureGroup, ids: ExternalIds, replies: Replies) -> FetchedRows:
    found = replies.lengths == group.row_bytes
    values = replies.rows.view(np.dtype(group.dtype).newbyteorder("<"))
    if found.all():
        return FetchedRows(values.astype(np.float32, copy=False), found)
    replies.rows[~found] = 0
    invalid = ~found & (replies.lengths != resp.NIL)
    wrong = np.flatnonzero(invalid)
    problems = tuple(
        f"group {group.name!r}: the row of {listed(ids)[row]!r} has {replies.lengths[row]} bytes "
        f"instead of {group.row_bytes}"
        for row in wrong[:MAX_PROBLEMS].tolist()
    )
    return FetchedRows(values.astype(np.float32, copy=False), found, problems, len(wrong), invalid)


def _compile() -> None:
    """Load the compiled functions before the first request."""
    keys = resp.keys_of(resp.to_bytes(b"x"), [1])
    resp.mget(keys, 1)
    buffer = resp.to_bytes(b"*1\r\n$-1\r\n")
    state = np.array((0, 0, 0, 1), np.int64)
    resp.read_replies(buffer, 0, len(buffer), state, 1, np.empty(1, np.int64), np.empty((1, 1), np.uint8))
