"""DynamoDB, as moto's server plays it; faults come from a go-between that answers in its place."""

import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import boto3
import numpy as np
import pytest

from hopline.errors import ConfigError, FeatureGroupNotFound, FeatureStoreError, FeatureStoreUnavailable
from hopline.features.base import FeatureGroup
from hopline_stores.dynamodb import DynamoDbStore
from hopline_stores.testing.feature_stores import (
    LARGE,
    MERCHANTS,
    SAMPLES,
    FeatureStoreSuite,
    Sample,
    WritableFeatureStoreSuite,
    check_rows,
)
from packages.stores.tests.column_stores import GROUP as COLUMNS
from packages.stores.tests.column_stores import ColumnStoreSuite
from packages.stores.tests.test_published import check_notes, check_removal

SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
TABLES = (f"features-{number}" for number in count())
#: Enough for more than one call of 100 keys or 25 items.
SMALL_LARGE = Sample(
    FeatureGroup("large", 2),
    list(range(0, 360, 3)),
    np.arange(240, dtype=np.float32).reshape(120, 2),
    [1, 2],
)
SMALL_SAMPLES = (*(sample for sample in SAMPLES if sample is not LARGE), SMALL_LARGE)
GROUP = FeatureGroup("account", 4, feature_names=("a", "b", "c", "d"))


@pytest.fixture(scope="module", autouse=True)
def aws(tmp_path_factory):
    """Credentials of nobody, and nothing of this machine's own."""
    nowhere = str(tmp_path_factory.mktemp("aws") / "absent")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", nowhere)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield


@pytest.fixture(scope="module")
def port(aws):
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.stdout.close()
        process.terminate()
        process.wait(10)


#: moto on a busy machine is slower than DynamoDB.
PATIENT = "&timeout_ms=9000"


def url(port, table=None, options="&create=true" + PATIENT):
    return (
        f"dynamodb://{table or next(TABLES)}?region=eu-west-1&endpoint_url=http://127.0.0.1:{port}{options}"
    )


def client(port):
    return boto3.client("dynamodb", region_name="eu-west-1", endpoint_url=f"http://127.0.0.1:{port}")


async def filled(port, table, num_rows=4, group=GROUP):
    """Make a table with rows 0 … num_rows - 1; their values."""
    store = DynamoDbStore(url(port, table), "features.store")
    await store.open()
    values = np.arange(num_rows * group.dim, dtype=np.float32).reshape(num_rows, group.dim)
    await store.create(group)
    await store.write(group, list(range(num_rows)), values)
    await store.close()
    return values


@contextmanager
def open_client(port):
    used = client(port)
    try:
        yield used
    finally:
        used.close()


@pytest.fixture(scope="module")
def samples_store(port):
    """Opened and filled once for all tests that only read: boto3 and moto take their time."""
    store = DynamoDbStore(url(port), "features.store")

    async def fill():
        await store.open()
        for sample in SMALL_SAMPLES:
            await store.create(sample.group)
            await store.write(sample.group, sample.ids, sample.values)

    asyncio.run(fill())
    yield store
    asyncio.run(store.close())


class TestReading(FeatureStoreSuite):
    samples = SMALL_SAMPLES

    @pytest.fixture
    async def store(self, samples_store):
        return samples_store


@pytest.mark.sample(1)
class TestWriting(WritableFeatureStoreSuite):
    samples = (MERCHANTS, SMALL_LARGE)

    @pytest.fixture
    async def empty_store(self, port):
        store = DynamoDbStore(url(port), "features.store")
        await store.open()
        yield store
        await store.close()


class TestColumns(ColumnStoreSuite):
    @pytest.fixture
    async def columns_store(self, port):
        store = DynamoDbStore(url(port), "features.store")
        await store.open()
        yield store
        await store.close()

    async def test_items_of_another_writer_are_rows_of_columns(self, columns_store, port):
        await columns_store.create(COLUMNS)
        table = columns_store._table
        for id, item in {
            "a1": {"amount": {"N": "12.50"}, "visits": {"N": "3"}, "active": {"BOOL": True}},
            "a2": {"amount": {"S": "much"}, "visits": {"NULL": True}, "more": {"L": []}},
            "a3": {"country": {"SS": ["JP", "DE"]}},
            "a4": {"row": {"B": b"1234"}},
        }.items():
            client(port).put_item(TableName=table, Item={"key": {"S": f"account:{id}"}, **item})
        one, two, three, four, five = await columns_store.fetch_columns(
            COLUMNS, [f"a{n}" for n in range(1, 6)]
        )
        assert one == {"amount": 12.5, "visits": 3, "active": True}
        assert two == {"amount": "much", "visits": None}
        assert "'country' is an attribute of type SS" in three
        assert "numbers" in four
        assert five is None
        lenient = DynamoDbStore(url(port, table, "&absent=null" + PATIENT), "features.store")
        await lenient.open()
        (row,) = await lenient.fetch_columns(COLUMNS, ["a1"])
        assert row == {**one, "country": None, "opened": None}
        await lenient.close()

    async def test_lists_of_another_writer_are_the_columns_of_a_request(self, columns_store, port):
        types = {"tags=a": "boolean", "tags#": "integer", "emb_0": "float", "emb_1": "float"}
        group = FeatureGroup.of_columns("account", types)
        await columns_store.create(group)
        emb = {"L": [{"N": "0.5"}, {"N": "-2"}]}
        for id, item in {
            "a1": {"tags": {"SS": ["a", "b"]}, "emb": emb},
            "a2": {"tags": {"L": [{"S": " a"}, {"NULL": True}]}, "emb": {"NULL": True}},
            "a3": {"tags": {"M": {}}, "emb": emb},
            "a4": {"tags": {"S": "a|b"}, "emb": emb},
        }.items():
            client(port).put_item(
                TableName=columns_store._table, Item={"key": {"S": f"account:{id}"}, **item}
            )
        one, two, three, four = await columns_store.fetch_columns(group, [f"a{n}" for n in range(1, 5)])
        assert one == {"tags=a": True, "tags#": 2, "emb_0": 0.5, "emb_1": -2}
        assert two == {"tags=a": True, "tags#": 1, "emb_0": None, "emb_1": None}
        assert three == "column 'tags' is an attribute of type M"
        assert four == "column 'tags': 'a|b' instead of a list of codes"

    async def test_what_an_item_cannot_hold_is_refused(self, columns_store):
        with pytest.raises(FeatureStoreError, match="'key'"):
            await columns_store.create(FeatureGroup.of_columns("x", {"key": "text"}))
        group = FeatureGroup.of_columns("x", {"amount": "float"})
        await columns_store.create(group)
        with pytest.raises(FeatureStoreError, match="'amount': DynamoDB has no number 1e-200"):
            await columns_store.write_columns(group, ["a"], {"amount": [1e-200]})


class Between:
    """Passes requests on to moto, unless `answer(operation, body)` has one of its own: (status, body).

    Attributes:
        asked: the operation of every request.
    """

    def __init__(self, port):
        self.asked = []
        self.answer = lambda operation, body: None
        between = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                operation = self.headers["X-Amz-Target"].rpartition(".")[2]
                between.asked.append(operation)
                answer = between.answer(operation, json.loads(raw))
                status, body = answer or self.moto(raw)
                told = json.dumps(body).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/x-amz-json-1.0")
                    self.send_header("Content-Length", str(len(told)))
                    self.end_headers()
                    self.wfile.write(told)
                except ConnectionError:
                    pass

            def moto(self, raw):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                kept = ("Content-Type", "X-Amz-Target", "Authorization", "X-Amz-Date")
                headers = {name: self.headers[name] for name in kept}
                try:
                    connection.request("POST", "/", raw, headers)
                    response = connection.getresponse()
                    return response.status, json.loads(response.read())
                finally:
                    connection.close()

            def log_message(self, *args):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

        self.moto = Handler.moto
        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def refuse(self, status, code):
        self.answer = lambda operation, body: (status, {"__type": f"com.amazonaws#{code}", "message": "no"})

    def close(self):
        if self.thread.is_alive():
            self.server.shutdown()
            self.thread.join()
            self.server.server_close()


@pytest.fixture
def between(port):
    server = Between(port)
    yield server
    server.close()


@pytest.fixture
async def behind(port, between):
    """(store that asks through `between`, table name, values of rows 0 … 3)."""
    table = next(TABLES)
    values = await filled(port, table)
    store = DynamoDbStore(url(between.port, table, PATIENT), "features.store")
    await store.open()
    between.asked.clear()
    yield store, table, values
    await store.close()


async def test_421_rows_are_five_calls_and_duplicates_cost_nothing(port, between):
    table = next(TABLES)
    values = await filled(port, table, 421)
    store = DynamoDbStore(url(between.port, table, PATIENT), "features.store")
    await store.open()
    between.asked.clear()
    order = [*range(421), *range(421)]
    check_rows(await store.fetch(GROUP, order), values[order])
    assert between.asked == ["BatchGetItem"] * 5
    await store.close()


async def test_serving_needs_one_permission_only(port, between):
    table = next(TABLES)
    await filled(port, table)
    store = DynamoDbStore(url(between.port, table, PATIENT), "features.store")
    await store.open()
    await store.describe("account")
    await store.fetch(GROUP, [1])
    await store.close()
    assert set(between.asked) == {"BatchGetItem"}


async def test_keys_left_out_of_an_answer_are_requested_again(behind, between):
    store, table, values = behind

    def half(operation, body):
        keys = body["RequestItems"][table]["Keys"]
        between.answer = lambda operation, body: None
        return 200, {"Responses": {table: []}, "UnprocessedKeys": {table: {"Keys": keys}}}

    between.answer = half
    check_rows(await store.fetch(GROUP, [3, 0, 2]), values[[3, 0, 2]])
    assert between.asked == ["BatchGetItem"] * 2


async def test_keys_that_are_left_out_for_ever_are_throttling_not_missing_rows(behind, between):
    store, table, _ = behind

    def none(operation, body):
        unprocessed = {table: {"Keys": body["RequestItems"][table]["Keys"]}}
        return 200, {"Responses": {table: []}, "UnprocessedKeys": unprocessed}

    between.answer = none
    with pytest.raises(FeatureStoreUnavailable, match="throttled; 2 items"):
        await store.fetch(GROUP, [0, 1])
    assert len(between.asked) <= 4


async def test_items_that_a_write_left_out_are_written(behind, between):
    store, _, _ = behind

    def none(operation, body):
        between.answer = lambda operation, body: None
        return 200, {"UnprocessedItems": body["RequestItems"]}

    between.answer = none
    await store.write(GROUP, [9], np.ones((1, 4), np.float32))
    assert between.asked == ["BatchWriteItem"] * 2
    check_rows(await store.fetch(GROUP, [9]), np.ones((1, 4)))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "ProvisionedThroughputExceededException"),
        (400, "ThrottlingException"),
        (400, "RequestLimitExceeded"),
        (500, "InternalServerError"),
        (503, "AnythingElse"),
    ],
)
async def test_what_passes_is_unavailable_and_not_tried_again_here(behind, between, status, code):
    store, _, values = behind
    between.refuse(status, code)
    for ask in (store.fetch(GROUP, [1]), store.describe("account")):
        with pytest.raises(FeatureStoreUnavailable, match=code):
            await ask
    assert len(between.asked) == 2
    between.answer = lambda operation, body: None
    check_rows(await store.fetch(GROUP, [1]), values[[1]])


@pytest.mark.parametrize("code", ["AccessDeniedException", "ValidationException", "ExpiredTokenException"])
async def test_what_stays_is_an_error_that_no_retry_is_for(behind, between, code):
    store, _, _ = behind
    between.refuse(400, code)
    with pytest.raises(FeatureStoreError, match=code) as caught:
        await store.fetch(GROUP, [1])
    assert not isinstance(caught.value, FeatureStoreUnavailable)


async def test_a_server_that_went_away_is_unavailable(behind, between):
    store, _, _ = behind
    between.close()
    with pytest.raises(FeatureStoreUnavailable):
        await store.fetch(GROUP, [1])


async def test_after_many_cancelled_fetches_the_store_answers_while_they_still_hang(behind, between):
    _, table, values = behind
    store = DynamoDbStore(url(between.port, table, ""), "features.store")
    await store.open()
    ended = threading.Event()

    def hang(operation, body):
        ended.wait(60)
        return 200, {}

    between.answer = hang
    fetches = [asyncio.ensure_future(store.fetch(GROUP, [i % 4])) for i in range(50)]
    _, waiting = await asyncio.wait(fetches, timeout=0.02)
    assert len(waiting) == 50
    for fetch in waiting:
        fetch.cancel()
    await asyncio.wait(waiting)
    between.answer = lambda operation, body: None
    begun = time.monotonic()
    check_rows(await store.fetch(GROUP, [2, 1]), values[[2, 1]])
    took = time.monotonic() - begun
    ended.set()
    await store.close()
    assert took < 20


async def test_rows_that_cannot_be_used_are_counted_and_named(port, behind):
    store, table, values = behind
    with open_client(port) as direct:
        for id, row in {
            0: {"B": values[0].tobytes()[:-1]},
            2: {"B": values[0].tobytes() * 2},
            7: {"S": "not binary"},
        }.items():
            direct.put_item(TableName=table, Item={"key": {"S": f"account:{id}"}, "row": row})
        direct.put_item(TableName=table, Item={"key": {"S": "account:8"}, "other": {"S": "no row"}})
    rows = await store.fetch(GROUP, [0, 1, 2, 3, 7, 8, 0])
    check_rows(rows, values[[0, 1, 0, 3, 0, 0, 0]], [False, True, False, True, False, False, False])
    assert rows.num_invalid == 4
    assert rows.problems == (
        "account 0: the row has 15 bytes, not 16",
        "account 2: the row has 32 bytes, not 16",
        "account 7: the row is not binary",
        "account 0: the row has 15 bytes, not 16",
    )


async def test_at_most_five_problems_are_spelt_out(port, behind):
    store, _, _ = behind
    narrow = FeatureGroup("account", 3)
    rows = await store.fetch(narrow, [0, 1, 2, 3, 0, 1, 2])
    assert rows.num_invalid == 7
    assert len(rows.problems) == 5


async def test_a_row_whose_id_is_schema_is_beside_the_schema(behind):
    store, _, values = behind
    rows = await store.fetch(GROUP, ["schema"])
    check_rows(rows, values[:1], False)
    assert rows.num_invalid == 0
    await store.write(GROUP, ["schema", "other"], values[:2])
    assert await store.describe("account") == GROUP
    await store.create(GROUP)
    check_rows(await store.fetch(GROUP, ["other", "schema"]), values[[1, 0]])


@pytest.mark.parametrize("id", ["x" * 2048, "\udc80", "ü" * 1024])
async def test_an_id_that_cannot_be_a_key_spoils_no_other(behind, id):
    store, _, values = behind
    check_rows(await store.fetch(GROUP, ["1", id, "2"]), values[[1, 0, 2]], [True, False, True])
    with pytest.raises(FeatureStoreError, match="cannot be a key"):
        await store.write(GROUP, ["1", id], np.zeros((2, 4), np.float32))
    check_rows(await store.fetch(GROUP, [1]), values[[1]])


async def test_an_unknown_group_is_refused_with_those_that_exist(behind):
    store, _, _ = behind
    await store.create(FeatureGroup("merchant", 2))
    with pytest.raises(
        FeatureGroupNotFound, match="no feature group 'acount'; known groups: 'account', 'merchant'"
    ):
        await store.describe("acount")
    for name in ("", "a:b", ":groups"):
        with pytest.raises(FeatureGroupNotFound):
            await store.describe(name)


async def test_a_schema_that_is_none_is_an_error(port, behind):
    store, table, _ = behind
    with open_client(port) as direct:
        direct.put_item(TableName=table, Item={"key": {"S": "odd:schema"}, "schema": {"S": '{"name": 1}'}})
    with pytest.raises(FeatureStoreError, match="odd:schema"):
        await store.describe("odd")


async def test_the_table_is_made_by_request_and_is_paid_by_request(port):
    table = next(TABLES)
    await filled(port, table)
    with open_client(port) as direct:
        told = direct.describe_table(TableName=table)["Table"]
    assert told["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert told["KeySchema"] == [{"AttributeName": "key", "KeyType": "HASH"}]


async def test_a_table_that_is_still_to_be_made_has_no_groups(port):
    store = DynamoDbStore(url(port), "features.store")
    await store.open()
    with pytest.raises(FeatureGroupNotFound, match="known groups: none"):
        await store.describe("account")
    await store.create(GROUP)
    assert await store.describe("account") == GROUP
    await store.close()


async def refusal(url):
    store = DynamoDbStore(url, "features.store")
    with pytest.raises(ConfigError) as caught:
        await store.open()
    with pytest.raises(FeatureStoreError, match="not open"):
        await store.fetch(GROUP, [1])
    return str(caught.value)


async def test_a_missing_table_is_a_config_error(port):
    told = await refusal(url(port, "absent", ""))
    assert told.startswith("features.store: DynamoDB table 'absent' at http://127.0.0.1")
    assert "create=true" in told


async def test_a_table_with_another_key_is_a_config_error(port):
    with open_client(port) as direct:
        direct.create_table(
            TableName="other-key",
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "N"}],
            BillingMode="PAY_PER_REQUEST",
        )
    told = await refusal(url(port, "other-key", ""))
    assert told.startswith("features.store: ")
    assert "must be only the partition key 'key'" in told


async def test_a_wrong_address_is_a_config_error(port, between):
    between.close()
    told = await refusal(url(between.port, "any", ""))
    assert told.startswith("features.store: ")
    assert "cannot be reached" in told
    assert (await refusal("dynamodb://any?region=eu-west-1&endpoint_url=nonsense")).startswith(
        "features.store: "
    )


async def test_an_address_where_no_dynamodb_answers_is_a_config_error(between):
    between.answer = lambda operation, body: (404, {"detail": "Not Found"})
    assert (await refusal(url(between.port, "any", ""))).startswith("features.store: ")


async def test_wrong_credentials_are_a_config_error(between):
    between.refuse(400, "UnrecognizedClientException")
    told = await refusal(url(between.port, "any", ""))
    assert told.startswith("features.store: ")
    assert "UnrecognizedClientException" in told


async def test_no_credentials_are_a_config_error(port, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    told = await refusal(url(port, "any", ""))
    assert told.startswith("features.store: ")
    assert "credentials" in told


async def test_no_region_is_a_config_error(port):
    told = await refusal(f"dynamodb://any?endpoint_url=http://127.0.0.1:{port}")
    assert told.startswith("features.store: ")
    assert "add ?region=" in told


async def test_a_throttled_start_is_no_config_error(between):
    between.refuse(400, "ThrottlingException")
    store = DynamoDbStore(url(between.port, "any", ""), "features.store")
    with pytest.raises(FeatureStoreUnavailable, match="Throttling") as caught:
        await store.open()
    assert caught.value.__cause__ is not caught.value


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("dynamodb://", "must be dynamodb://<table>"),
        ("dynamodb://table/more", "must be dynamodb://<table>"),
        ("dynamodb://table?regoin=x", "unknown option 'regoin'; did you mean 'region'"),
        ("dynamodb://table?create=maybe", "create=maybe"),
        ("dynamodb://table?timeout_ms=0", "timeout_ms=0"),
    ],
)
def test_a_url_that_says_nothing_is_a_config_error(url, why):
    with pytest.raises(ConfigError, match=r"^features\.store: ") as caught:
        DynamoDbStore(url, "features.store")
    assert why in str(caught.value)


async def test_without_boto3_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3.session", None)
    store = DynamoDbStore("dynamodb://table", "features.store")
    with pytest.raises(ConfigError, match=r"^features\.store: .*hopline\[dynamodb\]"):
        await store.open()


async def test_notes_and_removal_are_those_of_other_stores(port):
    store = DynamoDbStore(url(port), "features.store")
    await store.open()
    assert await store.note("n") is None  # of a table that is not there yet
    await check_notes(store)
    await check_removal(store)
    assert await store.incarnation() == ""
    await store.close()
