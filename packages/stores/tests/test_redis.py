"""Rows in real redis-servers."""

import asyncio
import contextlib
import re
import signal
import socket
import subprocess
import time
from datetime import UTC, datetime

import msgspec
import numpy as np
import pytest
import uvloop

from hopline.errors import (
    ConfigError,
    FeatureGroupNotFound,
    FeatureStoreError,
    FeatureStoreUnavailable,
)
from hopline.features.base import FeatureGroup
from hopline.features.registry import open_store
from hopline_stores.redis import connection as redis_connection
from hopline_stores.redis import features as redis_module
from hopline_stores.redis import resp
from hopline_stores.redis import server as redis_server_module
from hopline_stores.redis.features import RedisStore
from hopline_stores.redis.url import RedisUrl
from hopline_stores.testing.feature_stores import WritableFeatureStoreSuite, check_rows
from packages.stores.tests.column_stores import GROUP as COLUMNS
from packages.stores.tests.column_stores import ColumnStoreSuite, fill
from tests.redis_servers import free_port, redis_cluster, redis_process


class TestRedisStore(WritableFeatureStoreSuite):
    @pytest.fixture
    async def empty_store(self, redis_server):
        redis_server.call("FLUSHALL")
        store = open_store(redis_server.url)
        await store.open()
        yield store
        await store.close()


@pytest.mark.sample(1)
class TestRedisClusterStore(WritableFeatureStoreSuite):
    @pytest.fixture
    async def empty_store(self, redis_nodes):
        for server in redis_nodes:
            server.call("FLUSHALL")
        store = open_store(f"redis+cluster://127.0.0.1:{redis_nodes[0].port}")
        await store.open()
        yield store
        await store.close()


class TestRedisColumns(ColumnStoreSuite):
    @pytest.fixture(params=["server", "cluster"])
    async def columns_store(self, request, redis_server, redis_nodes):
        servers = [redis_server] if request.param == "server" else redis_nodes
        for server in servers:
            server.call("FLUSHALL")
        cluster = f"redis+cluster://127.0.0.1:{redis_nodes[0].port}"
        store = open_store(f"{redis_server.url if request.param == 'server' else cluster}?absent=null")
        await store.open()
        yield store
        await store.close()


async def test_hashes_of_another_writer_are_rows_of_columns(redis_server):
    redis_server.call("FLUSHALL")
    store = open_store(redis_server.url)
    await store.open()
    await store.create(COLUMNS)
    redis_server.call(
        *("HSET", "hopline:account:a1", "amount", "12.50", "visits", "3", "active", "True", "country", ""),
        *("opened", "2024-01-31T13:45:00Z", "unread", "x"),
    )
    redis_server.call("HSET", "hopline:account:a2", "amount", "", "visits", "", "active", "", "opened", "")
    redis_server.call("HSET", "hopline:account:a3", "amount", "1_000", "visits", "3.5", "active", "yes")
    redis_server.call("SET", "hopline:account:a4", "x")
    redis_server.call("HSET", "hopline:account:a5", "country", b"\xff")
    one, two, three, four, five, six = await store.fetch_columns(COLUMNS, [f"a{n}" for n in range(1, 7)])
    opened = datetime(2024, 1, 31, 13, 45, tzinfo=UTC)
    assert one == {"amount": 12.5, "visits": 3, "active": True, "country": None, "opened": opened}
    assert two == {"amount": None, "visits": None, "active": None, "opened": None}  # no country
    assert three == "column 'amount': '1_000' instead of a number"
    assert "no hash" in four
    assert "'country' is not UTF-8" in five
    assert six is None
    with pytest.raises(FeatureStoreError, match=r"'country' is text and has a null.*absent=null"):
        await store.write_columns(COLUMNS, ["a9"], {name: [None] for name in COLUMNS.columns})
    rows = await store.fetch(FeatureGroup("account", 5), ["a1"])
    check_rows(rows, np.zeros((1, 5)), False)
    await store.close()


async def test_columns_in_redis_expire(redis_server):
    redis_server.call("FLUSHALL")
    store = open_store(f"{redis_server.url}?ttl_s=0.2&absent=null")
    await store.open()
    await fill(store)
    assert (await store.fetch_columns(COLUMNS, ["a1"]))[0]
    await asyncio.sleep(0.3)
    assert await store.fetch_columns(COLUMNS, ["a1"]) == [None]
    await store.close()


GROUP = FeatureGroup("node", 128)
VALUES = np.random.default_rng(0).standard_normal((421, 128)).astype(np.float32)
IDS = np.arange(421)


async def filled(url, **options):
    store = open_store(url, **options)
    await store.open()
    await store.create(GROUP)
    await store.write(GROUP, IDS, VALUES)
    return store


def connections_received(server):
    """How many there have been; this call's own is one of them."""
    return int(re.search(rb"total_connections_received:(\d+)", server.call("INFO", "stats"))[1])


def commands_processed(server):
    told = server.call("INFO", "commandstats")
    return {m[1].decode(): int(m[2]) for m in re.finditer(rb"cmdstat_(\w+):calls=(\d+)", told)}


# What is stored


async def test_rows_are_raw_little_endian_bytes_under_their_ids(own_redis):
    store = await filled(own_redis.url)
    assert own_redis.call("GET", "hopline:node:7")[:-1] == VALUES[7].astype("<f4").tobytes()
    told = own_redis.call("GET", "hopline:node:schema")
    assert msgspec.json.decode(told) == {
        "name": "node",
        "dim": 128,
        "dtype": "float32",
        "feature_names": [],
        "hash": GROUP.hash,
    }
    await store.close()


async def test_a_fetch_is_one_mget(own_redis):
    store = await filled(own_redis.url)
    before = commands_processed(own_redis)
    check_rows(await store.fetch(GROUP, IDS), VALUES)
    after = commands_processed(own_redis)
    assert after["mget"] - before.get("mget", 0) == 1
    assert after.get("get") == before.get("get")
    await store.close()


async def test_very_many_rows_are_several_mgets_in_one_round_trip(own_redis, monkeypatch):
    monkeypatch.setattr(redis_server_module, "MGET_KEYS", 100)
    store = await filled(own_redis.url)
    ids = [*range(421), -1, *range(378)]  # the last of 8 is whole
    expected = np.concatenate([VALUES, VALUES[:1], VALUES[:378]])
    check_rows(await store.fetch(GROUP, ids), expected, np.array(ids) >= 0)
    assert commands_processed(own_redis)["mget"] == 8
    await store.close()


async def test_an_id_called_schema_is_not_the_schema(redis_server):
    store = await filled(redis_server.url)
    await store.write(GROUP, ["schema", "schema:", "ä"], VALUES[:3])
    assert await store.describe("node") == GROUP
    check_rows(await store.fetch(GROUP, ["ä", "schema:", "schema"]), VALUES[2::-1])
    check_rows(await store.fetch(GROUP, ["schema"]), VALUES[:1])
    await store.close()


async def test_any_python_string_is_an_id(redis_server):
    store = await filled(redis_server.url)
    await store.write(GROUP, ["\ud800", "", "a\r\nb", "\0"], VALUES[:4])
    check_rows(await store.fetch(GROUP, ["\0", "a\r\nb", "", "\ud800"]), VALUES[3::-1])
    await store.close()


async def test_rows_expire_after_the_urls_ttl(redis_server):
    for url, ttl in (("?ttl_s=50", 50), ("?ttl_s=7.5", 8), ("", -1)):
        store = RedisStore(f"{redis_server.url}{url}")
        await store.open()
        await store.create(GROUP)
        await store.write(GROUP, [f"ttl{ttl}"], VALUES[:1])
        assert 0 <= ttl - int(redis_server.call("TTL", f"hopline:node:ttl{ttl}")) <= 1
        assert int(redis_server.call("TTL", "hopline:node:schema")) == -1
        await store.close()


async def test_prefix_and_database_keep_stores_apart(redis_server):
    a, b, c = [
        await filled(f"{redis_server.url}{tail}")
        for tail in ("/3?prefix=a[", "/3?prefix=b*", "?db=4&prefix=a[")
    ]
    await a.write(GROUP, [1], VALUES[5:6])
    check_rows(await a.fetch(GROUP, [1]), VALUES[[5]])
    check_rows(await b.fetch(GROUP, [1]), VALUES[[1]])
    check_rows(await c.fetch(GROUP, [1]), VALUES[[1]])
    await a.create(FeatureGroup("node", 64))  # drops a's rows
    check_rows(await a.fetch(GROUP, [1, 2]), np.zeros((2, 128)), False)
    check_rows(await b.fetch(GROUP, [1]), VALUES[[1]])
    check_rows(await c.fetch(GROUP, [1]), VALUES[[1]])
    for store in (a, b, c):
        await store.close()


async def test_loading_the_same_schema_again_is_no_gap_for_those_who_read(redis_server):
    store = await filled(redis_server.url)
    await store.create(GROUP)
    check_rows(await store.fetch(GROUP, IDS), VALUES)
    await store.close()


async def test_rows_of_another_schema_of_the_same_length_are_dropped(redis_server):
    store = await filled(redis_server.url)
    await store.create(FeatureGroup("node", 256, "float16"))
    check_rows(await store.fetch(FeatureGroup("node", 256, "float16"), IDS), np.zeros((421, 256)), False)
    await store.close()


# What cannot be used


async def test_rows_of_a_wrong_length_are_invalid_and_shift_nothing(redis_server):
    store = await filled(redis_server.url)
    # Together they have the length of four rows.
    for id, size in ((0, 600), (1, 424), (2, 1024), (3, 0)):
        redis_server.call("SET", f"hopline:node:{id}", b"x" * size)
    rows = await store.fetch(GROUP, [0, 1, 2, 3, 4, 0, 500, 5])
    check_rows(rows, VALUES[[0, 0, 0, 0, 4, 0, 0, 5]], [False] * 4 + [True, False, False, True])
    assert rows.num_invalid == 5
    assert len(rows.problems) == 5
    assert rows.problems[0] == "group 'node': the row of 0 has 600 bytes instead of 512"
    rows = await store.fetch(GROUP, [0] * 20)
    assert (rows.num_invalid, len(rows.problems)) == (20, 5)
    await store.close()


async def test_a_row_that_is_longer_than_any_buffer_is_invalid(redis_server):
    store = await filled(redis_server.url)
    redis_server.call("SET", "hopline:node:huge", b"x" * 3_000_000)
    ids = ["0", "huge", "1"]
    for _ in range(2):
        check_rows(await store.fetch(GROUP, ids), VALUES[[0, 0, 1]], [True, False, True])
    await store.close()


async def test_a_row_may_be_longer_than_the_buffer(redis_server):
    store = await filled(redis_server.url)
    group, values = FeatureGroup("wide", 500_000), np.arange(1_500_000, dtype=np.float32).reshape(3, -1)
    await store.create(group)
    await store.write(group, [1, 2, 3], values)
    check_rows(await store.fetch(group, [3, 9, 1, 2]), values[[2, 0, 0, 1]], [True, False, True, True])
    await store.close()


async def test_a_key_that_holds_no_string_is_missing(redis_server):
    store = await filled(redis_server.url)
    redis_server.call("DEL", "hopline:node:0")
    redis_server.call("LPUSH", "hopline:node:0", "x")
    check_rows(await store.fetch(GROUP, [0, 1]), VALUES[:2], [False, True])
    await store.close()
    redis_server.call("DEL", "hopline:node:0")


@pytest.mark.parametrize(
    "told", [b"no json", b'{"name":"node"}', b'{"name":"node","dim":128,"hash":"0123456789abcdef"}']
)
async def test_a_damaged_schema_is_an_error_and_can_be_written_anew(redis_server, told):
    store = await filled(redis_server.url)
    redis_server.call("SET", "hopline:node:schema", told)
    with pytest.raises(FeatureStoreError, match="schema of group 'node' is damaged"):
        await store.describe("node")
    await store.create(GROUP)
    assert await store.describe("node") == GROUP
    await store.close()


async def test_an_unknown_group_comes_with_those_there_are(redis_server):
    store = await filled(redis_server.url)
    with pytest.raises(
        FeatureGroupNotFound, match=r"redis: no feature group 'nodes'; known groups: .*'node'"
    ):
        await store.describe("nodes")
    await store.close()


# Opening


async def refused(url, said):
    store = open_store(url, "some.setting")
    with pytest.raises(ConfigError, match=rf"^some\.setting: .*{said}") as raised:
        await store.open()
    await store.close()
    assert "wrong-password" not in str(raised.value)


async def test_an_address_without_a_redis_fails_at_open_with_the_setting():
    port = free_port()
    await refused(f"redis://127.0.0.1:{port}", f"no connection to redis at 127.0.0.1:{port}: .*refused")
    await refused(f"redis+cluster://127.0.0.1:{port}", "no connection to redis cluster at")
    await refused(f"valkey://127.0.0.1:{port}", "no connection to valkey at")


async def test_a_host_that_is_unknown_fails_at_open_with_the_setting():
    await refused("redis://no-such-host.invalid", "no connection to redis at no-such-host.invalid:6379")


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\xff\r\n", b"$xx\r\n", b"+no\r\n"]
)
async def test_what_is_no_redis_fails_at_open_with_the_setting(answer):
    async def serve(reader, writer):
        await reader.read(100)
        writer.write(answer)
        await reader.read(1)

    async with serving(serve) as port:
        await refused(f"redis://127.0.0.1:{port}", "like a Redis|invalid Redis reply")


async def test_what_never_answers_fails_at_open_with_the_setting(monkeypatch):
    monkeypatch.setattr(redis_module, "_OPEN_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        await refused(f"redis://127.0.0.1:{silent.getsockname()[1]}", "did not answer within 0.05 s")


async def test_passwords(own_redis):
    own_redis.call("CONFIG", "SET", "requirepass", "se:cr@t/")
    at = f"127.0.0.1:{own_redis.port}"
    store = await filled(f"redis://:se%3Acr%40t%2F@{at}")
    check_rows(await store.fetch(GROUP, IDS), VALUES)
    await store.close()
    store = await filled(f"redis://default:se%3Acr%40t%2F@{at}/1")
    await store.close()
    await refused(f"redis://:wrong-password@{at}", "WRONGPASS")
    await refused(f"redis://me:wrong-password@{at}", "WRONGPASS")
    await refused(f"redis://{at}", "NOAUTH")
    own_redis.call("CONFIG", "SET", "requirepass", "", password="se:cr@t/")
    await refused(f"redis://:wrong-password@{at}", "without any password configured")


async def test_a_database_that_is_not_there(redis_server):
    await refused(f"{redis_server.url}/99", "DB index is out of range")


async def test_a_single_server_and_a_cluster_are_distinguished(redis_server, redis_nodes):
    await refused(redis_nodes[0].url, r"is part of a cluster; use redis\+cluster://")
    await refused(f"redis+cluster://127.0.0.1:{redis_server.port}", "cluster support disabled")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://h:port", "'h:port' is not an address"),
        ("redis://h:0", "is not an address"),
        ("redis://h:70000", "is not an address"),
        ("redis://a,b", "several addresses need redis"),
        ("redis://h/x", "the database must be a number, not 'x'"),
        ("redis://h?ttl=3", "unknown option 'ttl' in the URL; did you mean 'ttl_s'"),
        ("redis://h?ttl_s=soon", "ttl_s must be seconds"),
        ("redis://h?ttl_s=0", "ttl_s must be seconds"),
        ("rediss://h?ssl_ca_certs=/nowhere.pem", "ssl_ca_certs: '/nowhere.pem' does not exist"),
        ("rediss://h?ssl_cert_reqs=maybe", "ssl_cert_reqs must be"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_the_setting(url, said):
    with pytest.raises(ConfigError, match=rf"^some\.setting: .*{said}"):
        open_store(url, "some.setting")


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("redis://", [("localhost", 6379)]),
        ("redis://h", [("h", 6379)]),
        ("valkey://u:p@h:1", [("h", 1)]),
        ("redis://[::1]:2/3", [("::1", 2)]),
        ("redis+cluster://a:1,b,[::1]:2", [("a", 1), ("b", 6379), ("::1", 2)]),
    ],
)
def test_addresses(url, addresses):
    assert list(RedisUrl.parse(url, "s").addresses) == addresses


# TLS


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("redis-tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def tls_port(pair):
    cert, key = map(str, pair)
    port = free_port()
    files = ("--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
    with redis_process("--tls-port", str(port), *files):
        yield port


async def test_tls_with_a_certificate_of_the_clients(tls_port, pair):
    cert, key = pair
    files = f"ssl_ca_certs={cert}&ssl_certfile={cert}&ssl_keyfile={key}"
    for url in (
        f"rediss://127.0.0.1:{tls_port}?{files}",
        f"valkeys://127.0.0.1:{tls_port}?{files}&ssl_cert_reqs=none",
    ):
        store = await filled(url)
        check_rows(await store.fetch(GROUP, IDS), VALUES)
        await store.close()


async def test_tls_that_fails_fails_at_open_with_the_setting(tls_port, pair, redis_server, monkeypatch):
    cert, key = pair
    await refused(f"rediss://127.0.0.1:{tls_port}", "certificate verify failed")
    await refused(f"rediss://127.0.0.1:{tls_port}?ssl_ca_certs={cert}", "no connection|connection was lost")
    await refused(f"rediss://127.0.0.1:{tls_port}?ssl_ca_certs={key}", "certificate files cannot be used")
    monkeypatch.setattr(redis_module, "_OPEN_S", 0.1)
    await refused(f"rediss://127.0.0.1:{redis_server.port}?ssl_ca_certs={cert}", "did not answer within")


# Failures


async def soon(store, timeout_s=1.0):
    """Fetch until it works again."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            async with asyncio.timeout(0.1):
                return await store.fetch(GROUP, IDS)
        except (FeatureStoreUnavailable, TimeoutError):
            assert time.monotonic() < end, "it did not come back"
            await asyncio.sleep(0.005)


async def test_a_fetch_that_is_cancelled_halfway_does_not_shift_later_answers(own_redis):
    store = await filled(own_redis.url)
    own_redis.signal(signal.SIGSTOP)
    for ids in (IDS[::-1], IDS[:3], IDS[5:]):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await store.fetch(GROUP, ids)
    own_redis.signal(signal.SIGCONT)
    check_rows(await store.fetch(GROUP, IDS[7:90]), VALUES[7:90])
    assert commands_processed(own_redis)["mget"] == 4  # all on the one connection
    await store.close()


async def test_a_connection_that_is_silent_for_long_is_given_up(own_redis, monkeypatch):
    monkeypatch.setattr(redis_server_module, "STALL_S", 0.05)
    store = await filled(own_redis.url)
    own_redis.signal(signal.SIGSTOP)
    for _ in range(10):
        with pytest.raises((TimeoutError, FeatureStoreUnavailable)):
            async with asyncio.timeout(0.02):
                await store.fetch(GROUP, IDS)
    own_redis.signal(signal.SIGCONT)
    check_rows(await soon(store), VALUES)
    # What was asked while it stood still was not piled up on it.
    assert commands_processed(own_redis)["mget"] <= 6
    await store.close()


async def test_a_connection_is_not_given_up_because_this_process_did_not_get_to_reading(
    own_redis, monkeypatch
):
    """What was silent was we; the answer has lain in the socket all the while."""
    monkeypatch.setattr(redis_server_module, "STALL_S", 0.05)
    store = await filled(own_redis.url)
    connections = connections_received(own_redis)
    for _ in range(3):
        first = asyncio.ensure_future(store.fetch(GROUP, IDS[:9]))
        await asyncio.sleep(0)  # it is sent
        second = asyncio.ensure_future(store.fetch(GROUP, IDS[9:20]))
        time.sleep(0.2)  # noqa: ASYNC251
        check_rows(await second, VALUES[9:20])
        check_rows(await first, VALUES[:9])
    assert connections_received(own_redis) == connections + 1
    await store.close()


async def test_a_server_that_is_killed_and_started_again_is_found_again(own_redis):
    store = await filled(own_redis.url)
    answered, unavailable, stop = 0, 0, False

    async def load():
        nonlocal answered, unavailable
        while not stop:
            try:
                rows = await store.fetch(GROUP, IDS)
            except FeatureStoreUnavailable:
                unavailable += 1
                await asyncio.sleep(0.002)
            else:
                answered += 1
                check_rows(rows, VALUES, rows.found)
            await asyncio.sleep(0)

    callers = [asyncio.ensure_future(load()) for _ in range(4)]
    await asyncio.sleep(0.05)
    before = answered
    assert before > 0
    await asyncio.to_thread(own_redis.kill)
    await asyncio.sleep(0.05)
    assert unavailable >= 4
    await asyncio.to_thread(own_redis.start)
    check_rows(await soon(store), np.zeros((421, 128)), False)  # it kept nothing on disk
    await store.write(GROUP, IDS, VALUES)
    stop = True
    await asyncio.gather(*callers)
    assert answered > before
    check_rows(await store.fetch(GROUP, IDS), VALUES)
    await store.close()


async def test_requests_that_wait_when_the_connection_breaks_fail_immediately(own_redis):
    store = await filled(own_redis.url)
    own_redis.signal(signal.SIGSTOP)
    waiting = [asyncio.ensure_future(store.fetch(GROUP, IDS)) for _ in range(3)]
    await asyncio.sleep(0.01)
    own_redis.kill()
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, FeatureStoreUnavailable)
        assert "connection was lost" in str(outcome)
    with pytest.raises(FeatureStoreUnavailable, match="no connection to redis at"):
        await store.fetch(GROUP, IDS)
    with pytest.raises(FeatureStoreUnavailable):
        await store.write(GROUP, IDS, VALUES)
    await store.close()


async def test_a_server_that_does_not_keep_up_gets_no_more_requests(own_redis, monkeypatch):
    monkeypatch.setattr(redis_connection, "MAX_WAITING", 5)
    store = await filled(own_redis.url)
    own_redis.signal(signal.SIGSTOP)
    waiting = [asyncio.ensure_future(store.fetch(GROUP, IDS)) for _ in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(FeatureStoreUnavailable, match="is too slow: 5 requests"):
        await store.fetch(GROUP, IDS)
    own_redis.signal(signal.SIGCONT)
    for rows in await asyncio.gather(*waiting):
        check_rows(rows, VALUES)
    await store.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (b"-LOADING Redis is loading the dataset in memory", FeatureStoreUnavailable),
        (b"-BUSY Redis is busy running a script", FeatureStoreUnavailable),
        (b"-MASTERDOWN Link with MASTER is down", FeatureStoreUnavailable),
        (b"-ERR max number of clients reached", FeatureStoreUnavailable),
        (b"-NOPERM this user has no permissions", FeatureStoreError),
        (b"-ERR unknown command", FeatureStoreError),
    ],
)
async def test_error_answers_are_distinguished_by_whether_another_try_may_help(error, kind):
    async with pretending(error + b"\r\n") as url:
        store = open_store(url)
        await store.open()
        with pytest.raises(FeatureStoreError, match="answered: ") as raised:
            await store.fetch(GROUP, IDS)
        assert type(raised.value) is kind
        await store.close()


async def test_a_server_that_is_loading_its_data_is_not_a_wrong_address():
    async with pretending(b"", ping=b"-LOADING Redis is loading the dataset in memory\r\n") as url:
        store = open_store(url)
        with pytest.raises(FeatureStoreUnavailable, match="LOADING"):
            await store.open()
        await store.close()


@pytest.mark.parametrize(
    "garbage", [b"what?\r\n", b"*2\r\n", b"*421\r\n:5\r\n*1\r\n", b"*421\r\n$-2\r\n", b"*421\r\n$x\r\n"]
)
async def test_an_answer_that_is_no_resp_ends_the_connection(garbage):
    async with pretending(garbage) as url:
        store = open_store(url)
        await store.open()
        for _ in range(2):
            with pytest.raises(FeatureStoreUnavailable, match="invalid Redis reply"):
                await store.fetch(GROUP, IDS)
        await store.close()


async def test_an_answer_may_come_in_any_pieces():
    answer = b"*421\r\n" + b"".join(b"$512\r\n%b\r\n" % row.tobytes() for row in VALUES)
    answer = answer.replace(b"$512\r\n" + VALUES[5].tobytes(), b"$-1").replace(
        b"$512\r\n" + VALUES[6].tobytes(), b"$7\r\n1234567"
    )
    found = np.ones(421, bool)
    found[[5, 6]] = False
    for step in (700, 517, 65_536):
        async with pretending(answer, step) as url:
            store = open_store(url)
            await store.open()
            first, second = await asyncio.gather(store.fetch(GROUP, IDS), store.fetch(GROUP, IDS))
            check_rows(first, VALUES, found)
            check_rows(second, VALUES, found)
            await store.close()


@contextlib.asynccontextmanager
async def pretending(answer, step=1_000_000, ping=b"+PONG\r\n"):
    """A server that answers MGET with these bytes, so many at a time, and PING as Redis does."""

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readline():
                words = []
                for _ in range(int(head[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2])
                reply = {b"PING": ping, b"MGET": answer}.get(words[0], b"-ERR disabled\r\n")
                for at in range(0, len(reply), step):
                    writer.write(reply[at : at + step])
                    await writer.drain()
                    await asyncio.sleep(0)

    async with serving(serve) as port:
        yield f"redis://127.0.0.1:{port}"


@contextlib.asynccontextmanager
async def serving(serve):
    """The port of a server whose connections are all closed at the end."""
    writers, tasks = [], []

    async def handle(reader, writer):
        writers.append(writer)
        tasks.append(asyncio.current_task())
        with contextlib.suppress(ConnectionError):
            await serve(reader, writer)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    await asyncio.gather(*tasks)


def test_the_same_on_uvloop(own_redis):
    async def scenario():
        store = await filled(own_redis.url)
        own_redis.signal(signal.SIGSTOP)
        for ids in (IDS[::-1], IDS[5:]):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await store.fetch(GROUP, ids)
        own_redis.signal(signal.SIGCONT)
        check_rows(await store.fetch(GROUP, IDS[7:90]), VALUES[7:90])
        waiting = [asyncio.ensure_future(store.fetch(GROUP, IDS)) for _ in range(3)]
        for rows in await asyncio.gather(*waiting):
            check_rows(rows, VALUES)
        own_redis.kill()
        with pytest.raises(FeatureStoreUnavailable):
            await store.fetch(GROUP, IDS)
        own_redis.start()
        check_rows(await soon(store), np.zeros((421, 128)), False)
        await store.close()

    uvloop.run(scenario())


# Clusters


def cluster_url(servers):
    return f"redis+cluster://127.0.0.1:{servers[0].port}"


async def test_a_cluster_spreads_rows_and_a_fetch_calls_each_server_once(redis_nodes, monkeypatch):
    store = await filled(cluster_url(redis_nodes))
    sent = []
    send = redis_connection.Connection.send
    monkeypatch.setattr(
        redis_connection.Connection, "send", lambda self, *args: (sent.append(self), send(self, *args))[1]
    )
    check_rows(await store.fetch(GROUP, IDS), VALUES)
    assert len(sent) == len(set(sent)) == len(redis_nodes)
    assert all(int(server.call("DBSIZE")) > 50 for server in redis_nodes)
    await store.close()


async def test_one_known_server_of_a_cluster_is_enough(redis_nodes):
    dead, alive = free_port(), redis_nodes[1].port
    store = await filled(f"redis+cluster://127.0.0.1:{dead},127.0.0.1:{alive}")
    check_rows(await store.fetch(GROUP, IDS), VALUES)
    await store.close()


def test_slots_are_those_of_the_server(redis_nodes):
    ids = ["a", "{x}y", "a{x}y", "{}y", "a{", "a}b{c}", "ä", ""]
    keys = resp.keys_of(resp.to_bytes(b"k:"), ids)
    told = [int(redis_nodes[0].call("CLUSTER", "KEYSLOT", f"k:{id}")) for id in ids]
    assert resp.slots(keys).tolist() == told


async def test_slots_that_move_while_the_store_is_used(redis_nodes):
    store = await filled(cluster_url(redis_nodes))
    slot = redis_nodes[0].call("CLUSTER", "KEYSLOT", "hopline:node:5").decode().strip()
    names = [server.call("CLUSTER", "MYID").decode().strip() for server in redis_nodes]
    owner = next(
        i for i, server in enumerate(redis_nodes) if b"hopline:node:5\n" in server.call("KEYS", "*")
    )
    taker = (owner + 1) % len(redis_nodes)
    source, target = redis_nodes[owner], redis_nodes[taker]

    # On its way: the source says ASK about what it has not any more.
    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", names[owner])
    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", names[taker])
    source.call("MIGRATE", "127.0.0.1", str(target.port), "hopline:node:5", "0", "1000")
    check_rows(await store.fetch(GROUP, IDS), VALUES)
    changed = VALUES.copy()
    changed[5] += 1
    await store.write(GROUP, IDS, changed)
    check_rows(await store.fetch(GROUP, [5, 4, 5]), changed[[5, 4, 5]])

    # Arrived: the source says MOVED.
    for server in redis_nodes:
        server.call("CLUSTER", "SETSLOT", slot, "NODE", names[taker])
    check_rows(await store.fetch(GROUP, IDS), changed)
    await store.write(GROUP, IDS, VALUES)
    check_rows(await store.fetch(GROUP, IDS), VALUES)
    await store.close()


async def test_a_server_of_a_cluster_that_is_killed_and_comes_back():
    with redis_cluster() as servers:
        store = await filled(cluster_url(servers))
        servers[0].kill()  # the one of the URL
        with pytest.raises(FeatureStoreUnavailable):
            await store.fetch(GROUP, IDS)
        with pytest.raises(FeatureStoreUnavailable):
            await store.write(GROUP, IDS, VALUES)
        servers[0].start()
        rows = await soon(store, 10)
        check_rows(rows, VALUES, rows.found)
        assert 0.1 < rows.found.mean() < 0.9
        await store.write(GROUP, IDS, VALUES)
        check_rows(await store.fetch(GROUP, IDS), VALUES)
        await store.close()
