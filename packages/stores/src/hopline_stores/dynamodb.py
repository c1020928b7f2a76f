"""Feature rows in Amazon DynamoDB, or in a compatible database.

`dynamodb://<table>?region=eu-west-1`, with the options `&endpoint_url=http://…` for another address than
Amazon's, `&create=true` to create a missing table, and `&timeout_ms=500`, the time limit of one call. boto3
finds the credentials.

With `&absent=null`, an attribute that an item lacks is null.

One item is one row. The table's partition key is the string `key`, "<group>:<id>"; the attribute `row`
(binary) has the row's numbers, raw and little-endian. A row of columns has an attribute for each column:
S, N, BOOL or NULL, a time as S in ISO 8601, a list as L or SS. A group's schema is the attribute `schema`
of the item "<group>:schema", which a row with the id "schema" may share. The item ":groups" lists the
groups; an item "#<name>" is a note (`published.py`). Serving needs only the permission
dynamodb:BatchGetItem.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import numpy as np

from hopline.config.setting import did_you_mean
from hopline.errors import ConfigError, FeatureGroupNotFound, FeatureStoreError, FeatureStoreUnavailable
from hopline.features.base import ColumnRow, FeatureGroup, FetchedRows
from hopline.features.ids import listed
from hopline.features.rows import check_group, checked_values, not_found
from hopline.types import UNREADABLE, ExternalIds, FloatArray
from hopline_stores.columns import absent_is_null, is_null, kinds_of, rows_of, text_of
from hopline_stores.foreign import RowsById, Threads
from hopline_stores.published import PublishingStore

#: DynamoDB's own limits.
_KEYS_OF_A_READ = 100
_ITEMS_OF_A_WRITE = 25
_KEY_BYTES = 2048

#: Of its numbers, without a sign.
_SMALLEST, _LARGEST = 1e-130, 9.99e125

#: Concurrent calls; 421 rows need five.
_THREADS = 8
#: A call without callers ends after this time, so that a store that responds again after a hang is used
#: again within a second.
_TIMEOUT_MS = 500
#: Loading features has a longer timeout: no request waits for it.
_WRITE_TIMEOUT_S = 10.0
#: Average pauses before retries of items that DynamoDB left unprocessed.
_READ_PAUSES_S = (0.001, 0.002, 0.004)
_WRITE_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)

_GROUPS_KEY = ":groups"
_OPTIONS = ("region", "endpoint_url", "create", "timeout_ms", "absent")
#: Attributes with a meaning of ours, which no column can have.
_RESERVED = ("key", "row", "schema", "names", "note")

#: Transient error codes; all responses with status 5xx are transient too.
_TRANSIENT = frozenset(
    {
        "InternalServerError",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ServiceUnavailable",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
    }
)

Item = dict[str, Any]
_T = TypeVar("_T")


class DynamoDbStore(PublishingStore):
    """A DynamoDB table.

    Args:
        url: dynamodb://<table>?region=…&endpoint_url=…&create=true&timeout_ms=500
        setting: setting of the URL, for errors.

    Raises:
        ConfigError: the URL has no table, or unknown options.
    """

    kind = "dynamodb"

    def __init__(self, url: str, setting: str = "features.store") -> None:
        parts = urlsplit(url)
        self._setting = setting
        self._table = unquote(parts.netloc)
        if not self._table or parts.path.strip("/"):
            raise ConfigError(f"{setting}: {url!r} must be dynamodb://<table>?region=<region>")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        for name in options:
            if name not in _OPTIONS:
                raise ConfigError(
                    f"{setting}: {url!r} has an unknown option {name!r}{did_you_mean(name, _OPTIONS)}; "
                    f"known options: {', '.join(_OPTIONS)}"
                )
        if options.get("create", "false") not in ("true", "false"):
            raise ConfigError(f"{setting}: create={options['create']} in {url!r} is not true or false")
        timeout_ms = options.get("timeout_ms", str(_TIMEOUT_MS))
        if not (timeout_ms.isascii() and timeout_ms.isdecimal() and int(timeout_ms) > 0):
            raise ConfigError(f"{setting}: timeout_ms={timeout_ms} in {url!r} is not an integer above 0")
        self._timeout_s = int(timeout_ms) / 1000
        self._absent_is_null = absent_is_null(options, lambda why: ConfigError(f"{setting}: {why}"))
        self._region = options.get("region") or None
        self._endpoint = options.get("endpoint_url") or None
        self._may_create = options.get("create") == "true"
        self._is_missing = False
        self._name = f"DynamoDB table {self._table!r}"
        self._threads = Threads(self._name, self.kind, _THREADS)
        self._reader: Any = None
        self._writer: Any = None

    async def open(self) -> None:
        """Create the clients and read one item.

        Raises:
            ConfigError: boto3 is missing; no or wrong credentials, region or address; a table that is
                missing or has a different key.
            FeatureStoreUnavailable: DynamoDB responds, but is throttling or failing.
        """
        self._threads.open()
        try:
            await self._run(self._connect)
            await self._get([_GROUPS_KEY], self._writer)
        except ConfigError:
            await self.close()
            raise
        except FeatureStoreError as error:
            if self._may_create and _code(error.__cause__) == "ResourceNotFoundException":
                self._is_missing = True
                return
            await self.close()
            raise self._refusal(error) from error.__cause__  # may be the same error

    async def close(self) -> None:
        """Close connections. A running call ends within its time limit."""
        self._threads.close()
        for client in (self._reader, self._writer):
            if client is not None:
                client.close()
        self._reader = self._writer = None

    async def describe(self, group: str) -> FeatureGroup:
        """See `FeatureStore.describe`."""
        if self._is_missing:
            raise FeatureGroupNotFound(not_found(self.kind, group, []))
        key = _schema_key(group)
        items = await self._get([key, _GROUPS_KEY], self._reader)
        schema = items.get(key, {}).get("schema", {}).get("S")
        if not group or ":" in group or schema is None:
            known = items.get(_GROUPS_KEY, {}).get("names", {}).get("SS", [])
            raise FeatureGroupNotFound(not_found(self.kind, group, known))
        try:
            return msgspec.json.decode(schema, type=FeatureGroup)
        except UNREADABLE as error:
            raise FeatureStoreError(
                f"{self._name}: the schema in item {key!r} is invalid: {error}"
            ) from error

    async def fetch(self, group: FeatureGroup, ids: ExternalIds) -> FetchedRows:
        """See `FeatureStore.fetch`: 100 rows per call, calls in parallel."""
        keys = _keys(group.name, ids)
        items = await self._get(list({key for key in keys if _is_possible(key)}), self._reader)
        return _rows(group, ids, keys, items)

    async def create(self, group: FeatureGroup) -> None:
        """See `FeatureStore.create`; first creates a missing table if the URL allows it."""
        check_group(group)
        if taken := sorted({*group.columns} & {*_RESERVED}):
            raise FeatureStoreError(
                f"{self._name}: a column cannot have the name {taken[0]!r}, which an attribute of items has"
            )
        await self._make_table()
        schema = msgspec.json.encode(group).decode()
        await self._update(_schema_key(group.name), "SET #a = :v", "schema", {"S": schema})
        await self._update(_GROUPS_KEY, "ADD #a :v", "names", {"SS": [group.name]})

    async def write(self, group: FeatureGroup, ids: ExternalIds, values: FloatArray) -> None:
        """See `FeatureStore.write`: 25 rows per call; for a repeated id the last row is stored.

        Raises:
            FeatureStoreError: an id that cannot be a key; then nothing was written.
            FeatureStoreUnavailable: only some rows were written. Writing again is safe.
        """
        check_group(group)
        raw = checked_values(group, ids, values)
        rows = {key: {"row": {"B": raw[i].tobytes()}} for i, key in enumerate(_keys(group.name, ids))}
        await self._write(group, rows)

    async def _write(self, group: FeatureGroup, rows: dict[str, Item]) -> None:
        """Replace items: key -> attributes."""
        for key in rows:
            if not _is_possible(key):
                raise FeatureStoreError(
                    f"{self._name}: {key[:80]!r} … cannot be a key: at most {_KEY_BYTES} bytes of UTF-8"
                )
        for name, value in rows.pop(_schema_key(group.name), {}).items():  # with the schema
            await self._update(_schema_key(group.name), "SET #a = :v", name, value)
        puts = [{"PutRequest": {"Item": {"key": {"S": key}, **row}}} for key, row in rows.items()]
        await self._all(puts, _ITEMS_OF_A_WRITE, _WRITE_PAUSES_S, self._put_some)

    async def fetch_columns(self, group: FeatureGroup, ids: ExternalIds) -> Sequence[ColumnRow]:
        """See `FeatureStore.fetch_columns`."""
        keys = _keys(group.name, ids)
        items = await self._get(list({key for key in keys if _is_possible(key)}), self._reader)
        kinds = kinds_of(group)
        rows = [_columns(kinds, item) for item in items.values()]
        known = dict(zip(items, rows_of(group, rows, self._absent_is_null), strict=True))
        return [known.get(key) for key in keys]

    async def write_columns(
        self, group: FeatureGroup, ids: ExternalIds, columns: Mapping[str, Sequence[Any]]
    ) -> None:
        """See `FeatureStore.write_columns`; raises as `write`."""
        rows = {
            key: {name: _attribute(group, name, value) for name, value in zip(columns, values, strict=True)}
            for key, values in zip(_keys(group.name, ids), zip(*columns.values(), strict=True), strict=True)
        }
        await self._write(group, rows)

    async def note(self, name: str) -> bytes | None:
        """See `PublishingStore.note`; the value may be slightly outdated."""
        if self._is_missing:
            return None
        items = await self._get([f"#{name}"], self._reader)
        found: bytes | None = items.get(f"#{name}", {}).get("note", {}).get("B")
        return found

    async def swap_note(self, name: str, expected: bytes | None, content: bytes | None) -> bool:
        """See `PublishingStore.swap_note`: a conditional write."""
        await self._make_table()
        request: dict[str, Any] = {"TableName": self._table}
        request["ExpressionAttributeNames"] = {"#n": "note"}
        if expected is None:
            request["ConditionExpression"] = "attribute_not_exists(#n)"
        else:
            request["ConditionExpression"] = "#n = :old"
            request["ExpressionAttributeValues"] = {":old": {"B": expected}}
        key = {"key": {"S": f"#{name}"}}
        try:
            if content is None:
                await self._run(self._call, "delete_item", Key=key, **request)
            else:
                item = {**key, "note": {"B": content}}
                await self._run(self._call, "put_item", Item=item, **request)
        except FeatureStoreError as error:
            if _code(error.__cause__) != "ConditionalCheckFailedException":
                raise
            return False
        return True

    async def group_names(self) -> list[str]:
        """See `FeatureStore.group_names`."""
        items = {} if self._is_missing else await self._get([_GROUPS_KEY], self._reader)
        return list(items.get(_GROUPS_KEY, {}).get("names", {}).get("SS", []))

    async def remove(self, group: FeatureGroup, ids: ExternalIds) -> None:
        """See `FeatureStore.remove`: 25 rows per call."""
        keys = set(_keys(group.name, ids))
        if _schema_key(group.name) in keys:
            keys.remove(_schema_key(group.name))
            await self._update(_schema_key(group.name), "REMOVE #a", "row")
        deletes = [{"DeleteRequest": {"Key": {"key": {"S": key}}}} for key in sorted(keys)]
        await self._all(deletes, _ITEMS_OF_A_WRITE, _WRITE_PAUSES_S, self._put_some)

    async def forget(self, group: str) -> None:
        """See `PublishingStore.forget`."""
        key = {"key": {"S": _schema_key(group)}}
        await self._run(self._call, "delete_item", TableName=self._table, Key=key)
        await self._update(_GROUPS_KEY, "DELETE #a :v", "names", {"SS": [group]})

    async def incarnation(self) -> str:
        """See `PublishingStore.incarnation`: DynamoDB does not lose accepted writes."""
        return ""

    async def _make_table(self) -> None:
        if self._is_missing:
            await self._run(self._create_table)
            self._is_missing = False

    async def _update(self, key: str, expression: str, name: str, value: Item | None = None) -> None:
        """Change an attribute (#a) of an item by a value (:v); what else the item has stays."""
        values = {} if value is None else {"ExpressionAttributeValues": {":v": value}}
        await self._run(
            self._call,
            "update_item",
            TableName=self._table,
            Key={"key": {"S": key}},
            UpdateExpression=expression,
            ExpressionAttributeNames={"#a": name},
            **values,
        )

    async def _get(self, keys: list[str], client: Any) -> dict[str, Item]:
        """Return items by key, without missing ones. Keys must be distinct."""
        found: dict[str, Item] = {}

        def get_some(part: Sequence[Item]) -> list[Item]:
            answer = self._call(
                "batch_get_item",
                client,
                RequestItems={self._table: {"Keys": part}},
                ReturnConsumedCapacity="NONE",
            )
            for item in answer.get("Responses", {}).get(self._table, ()):
                found[item["key"]["S"]] = item
            left: list[Item] = answer.get("UnprocessedKeys", {}).get(self._table, {}).get("Keys", [])
            return left

        wanted = [{"key": {"S": key}} for key in keys]
        await self._all(wanted, _KEYS_OF_A_READ, _READ_PAUSES_S, get_some)
        return found

    def _put_some(self, part: Sequence[Item]) -> list[Item]:
        answer = self._call("batch_write_item", RequestItems={self._table: part})
        left: list[Item] = answer.get("UnprocessedItems", {}).get(self._table, [])
        return left

    async def _all(
        self,
        things: list[Item],
        size: int,
        pauses_s: Sequence[float],
        some: Callable[[Sequence[Item]], list[Item]],
    ) -> None:
        """Call `some` on parts of `size` in parallel, and again on the unprocessed items it returns."""
        for pause_s in (*pauses_s, None):
            parts = [things[i : i + size] for i in range(0, len(things), size)]
            left = await asyncio.gather(*(self._run(some, part) for part in parts))
            things = [thing for part in left for thing in part]
            if not things:
                return
            if pause_s is not None:
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
        raise FeatureStoreUnavailable(
            f"{self._name}: throttled; {len(things)} items are left after {len(pauses_s) + 1} attempts"
        )

    async def _run(self, function: Callable[..., _T], *args: Any, **options: Any) -> _T:
        return await self._threads.run(partial(function, *args, **options))

    def _call(self, operation: str, client: Any = None, **request: Any) -> Any:
        """Send one request, and translate boto3's errors. The default `client` is the one for writing."""
        from botocore.exceptions import BotoCoreError, ClientError

        client = client or self._writer
        if client is None:
            raise FeatureStoreError(f"{self._name} is not open")
        try:
            return getattr(client, operation)(**request)
        except (BotoCoreError, ClientError) as error:
            kind = FeatureStoreUnavailable if _is_transient(error) else FeatureStoreError
            raise kind(f"{self._name}: {error}") from error

    def _connect(self) -> None:
        try:
            from boto3.session import Session
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, NoRegionError
        except ImportError as error:
            raise ConfigError(
                f"{self._setting}: dynamodb:// needs boto3; install hopline[dynamodb]"
            ) from error

        def client(timeout_s: float) -> Any:
            config = Config(
                connect_timeout=timeout_s,
                read_timeout=timeout_s,
                # `features.client` decides about retries for all stores.
                retries={"total_max_attempts": 1, "mode": "standard"},
                max_pool_connections=_THREADS,
                tcp_keepalive=True,
                parameter_validation=False,
            )
            return session.client(
                "dynamodb", region_name=self._region, endpoint_url=self._endpoint, config=config
            )

        try:
            session = Session()
            self._reader = client(self._timeout_s)
            self._writer = client(_WRITE_TIMEOUT_S)
        except NoRegionError as error:
            raise self._wrong("no region; add ?region=<region> to the URL") from error
        except (BotoCoreError, ValueError) as error:
            raise self._wrong(str(error)) from error

    def _create_table(self) -> None:
        from botocore.exceptions import WaiterError

        try:
            self._call(
                "create_table",
                TableName=self._table,
                KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
        except FeatureStoreError as error:
            if _code(error.__cause__) != "ResourceInUseException":
                raise
        try:
            waiter = self._writer.get_waiter("table_exists")
            waiter.wait(TableName=self._table, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
        except WaiterError as error:
            raise FeatureStoreUnavailable(f"{self._name}: the table is not ready: {error}") from error

    def _refusal(self, error: FeatureStoreError) -> Exception:
        """Return the error that `open` raises for `error`."""
        code = _code(error.__cause__)
        if isinstance(error, FeatureStoreUnavailable):
            # If DynamoDB responded, the address is right.
            return error if code or error.__cause__ is None else self._wrong(f"cannot be reached: {error}")
        if code == "ResourceNotFoundException":
            return self._wrong(
                "no such table; with `create=true` in the URL, Hopline creates it to load features"
            )
        if code == "ValidationException":
            return self._wrong(f"its key must be only the partition key 'key', a string: {error}")
        return self._wrong(str(error))

    def _wrong(self, why: str) -> ConfigError:
        where = self._endpoint or (f"region {self._region}" if self._region else "the default region")
        return ConfigError(f"{self._setting}: {self._name} at {where}: {why}")


def _schema_key(group: str) -> str:
    return f"{group}:schema"


def _keys(group: str, ids: ExternalIds) -> list[str]:
    return [f"{group}:{id}" for id in listed(ids)]


def _is_possible(key: str) -> bool:
    """Return True if DynamoDB accepts the key: an invalid one would make the other 99 of its call fail."""
    try:
        return len(key) <= _KEY_BYTES and len(key.encode()) <= _KEY_BYTES
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _rows(group: FeatureGroup, ids: ExternalIds, keys: list[str], items: dict[str, Item]) -> FetchedRows:
    """Convert items to rows, in the order of `keys`."""
    rows = RowsById(group, len(keys))
    raw: list[bytes] = []
    for i, key in enumerate(keys):
        row = items.get(key, {}).get("row")
        if row is None:
            continue
        numbers = row.get("B")
        if numbers is not None and len(numbers) == group.row_bytes:
            rows.found[i] = True
            raw.append(numbers)
        elif numbers is None:
            rows.problems[i] = "the row is not binary"
        else:
            rows.problems[i] = f"the row has {len(numbers)} bytes, not {group.row_bytes}"
    if raw:
        dtype = np.dtype(group.dtype).newbyteorder("<")
        rows.values[rows.found] = np.frombuffer(b"".join(raw), dtype).reshape(-1, group.dim)
    return rows.answer(np.arange(len(keys)), ids)


def _columns(kinds: Mapping[str, str], item: Item) -> ColumnRow:
    """An item as a row of columns; None for one without attributes of a row."""
    if "row" in item:
        return "has the numbers of a row, and no columns"
    if not item.keys() - {*_RESERVED}:
        return None
    found: dict[str, Any] = {}
    for name in [each for each in kinds if each in item]:
        try:
            form, value = item[name].popitem()
            found[name] = _value(form, value, kinds[name] in ("codes", "vector"))
        except TypeError as error:
            return f"column {name!r} is {error}"
    return found


def _value(form: str, value: Any, is_list: bool = False) -> Any:
    """The value of an attribute. Raises: TypeError: of a type that no column has."""
    if form == "N":
        return int(value) if value.lstrip("-").isdecimal() else float(value)
    if is_list and form == "L":
        return [_value(*each.popitem()) for each in value]
    if form not in ("S", "BOOL", "NULL") and not (is_list and form == "SS"):
        raise TypeError(f"an attribute of type {form}")
    return None if form == "NULL" else value


def _attribute(group: FeatureGroup, name: str, value: Any) -> Item:
    """A value of a column as an attribute."""
    if is_null(value):
        return {"NULL": True}
    kind = group.columns[name]
    if kind == "boolean":
        return {"BOOL": bool(value)}
    if kind in ("text", "timestamp"):
        return {"S": text_of(kind, value)}
    if value and not _SMALLEST <= abs(value) <= _LARGEST:
        raise FeatureStoreError(f"column {name!r}: DynamoDB has no number {value!r}; store it as text")
    return {"N": text_of(kind, value)}


def _code(error: BaseException | None) -> str:
    """Return the error code of DynamoDB's response; "" without one."""
    answer = getattr(error, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""


def _is_transient(error: Exception) -> bool:
    from botocore import exceptions

    if isinstance(error, exceptions.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= 500 or _code(error) in _TRANSIENT
    # A broken connection, a timeout, a partial response, or an unavailable credentials service.
    return isinstance(
        error,
        exceptions.HTTPClientError
        | exceptions.ConnectionError
        | exceptions.CredentialRetrievalError
        | exceptions.MetadataRetrievalError,
    )
