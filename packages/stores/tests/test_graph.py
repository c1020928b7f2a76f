"""Graphs in a Redis and in a cluster of three masters: pushed, read, and with servers lost."""

import signal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.errors import ConfigError, GraphStoreError, GraphStoreUnavailable
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline_stores.redis import graph_push as pushing
from hopline_stores.redis.graph import MAX_RANGE_BYTES, RedisGraphStore, entries, ranges_of
from hopline_stores.redis.graph_layout import Redis, host_arrays, parts_of
from hopline_stores.redis.graph_push import push
from tests.graph_store.answers import answer, answerer_on, request_of, same
from tests.graph_store.suite import GraphStoreSuite
from tests.redis_servers import redis_process


def cluster_url(servers, prefix="hopline:"):
    addresses = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"redis+cluster://{addresses}?prefix={prefix}"


def saved(graph, folder):
    return graph if graph.path is not None else graph.save(folder / graph.version, overwrite=True)


async def opened(url, folder, version=""):
    store = RedisGraphStore(url, folder / "cache", version)
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store


class TestCluster(GraphStoreSuite):
    @pytest.fixture(params=["sage", "hetero"])
    def graph(self, request, cases):
        return cases[request.param].graph

    @pytest.fixture
    async def store(self, graph, redis_nodes, tmp_path):
        url = cluster_url(redis_nodes)
        await push(saved(graph, tmp_path), url)
        store = await opened(url, tmp_path, graph.version)
        yield store
        await store.close()


class TestOneServer(GraphStoreSuite):
    @pytest.fixture
    def graph(self, cases):
        return cases["sage"].graph.compressed()

    @pytest.fixture
    async def store(self, graph, redis_server, tmp_path):
        await push(saved(graph, tmp_path), redis_server.url)
        store = await opened(redis_server.url, tmp_path, graph.version)
        yield store
        await store.close()


@pytest.mark.parametrize("name", ["sage", "gat", "hetero", "link"])
async def test_answers_are_those_of_the_local_graph(cases, redis_nodes, tmp_path, name):
    case = cases[name]
    url = cluster_url(redis_nodes)
    await push(saved(case.graph, tmp_path), url)
    store = await opened(url, tmp_path, case.graph.version)
    stored, local = answerer_on(case, store.graph, True), case.answerer(False)
    for first in range(0, 100, 11):
        request = request_of(case, range(first, first + 5))
        before = store.num_round_trips
        found, num_reads = await answer(stored, store, request)
        assert same(found, local.answer([request])[0])
        assert store.num_round_trips - before == num_reads <= 3
    await store.close()


async def test_a_push_that_was_cut_continues(cases, redis_nodes, tmp_path, monkeypatch):
    graph = saved(cases["sage"].graph, tmp_path)
    url = cluster_url(redis_nodes, "cut:")
    written = []
    original = pushing._Push._write

    async def failing(self, keys, rows):
        if len(written) == 3:
            raise GraphStoreUnavailable("the line was cut")
        written.append(keys)
        await original(self, keys, rows)

    monkeypatch.setattr(pushing._Push, "_write", failing)
    with pytest.raises(GraphStoreUnavailable):
        await push(graph, url)
    monkeypatch.undo()
    with pytest.raises(GraphStoreError, match=r"no graph was pushed"):
        await opened(url, tmp_path)
    pushed = await push(graph, url)
    assert pushed.num_written == pushed.num_chunks - 3
    assert pushed.num_repaired == 0
    again = await push(graph, url)
    assert again.num_written == 0


async def test_chunks_that_a_server_lost_are_an_error_until_they_are_pushed_again(
    cases, redis_nodes, tmp_path
):
    case = cases["plain"]
    graph = saved(case.graph, tmp_path)
    url = cluster_url(redis_nodes, "lost:")
    await push(graph, url)
    store = await opened(url, tmp_path)
    key = f"lost:graph:{graph.version}:edges/node__to__node/indices:0"
    for server in redis_nodes:
        server.call("--raw", "-c", "UNLINK", key)
        break
    stored = answerer_on(case, store.graph, False)
    with pytest.raises(GraphStoreUnavailable, match=r"missing or cut.*hopline graph push"):
        await answer(stored, store, request_of(case, [1, 2]))
    assert (await push(graph, url)).num_repaired == 1
    found, _ = await answer(stored, store, request_of(case, [1, 2]))
    assert same(found, case.answerer(False).answer([request_of(case, [1, 2])])[0])
    await store.close()


async def test_edges_that_name_no_node_are_refused(cases, redis_nodes, tmp_path):
    graph = saved(cases["plain"].graph, tmp_path)
    url = cluster_url(redis_nodes, "bad:")
    await push(graph, url)
    store = await opened(url, tmp_path)
    key = f"bad:graph:{graph.version}:edges/node__to__node/indices:0"
    redis_nodes[0].call("-c", "SET", key, "y" * graph.num_edges)
    wanted = {"node__to__node": np.arange(5)}
    with pytest.raises(GraphStoreError, match=r"not one of 120 nodes.*push the graph again"):
        await store.fetch(wanted, {"node__to__node": ("indices",)})
    await store.close()


async def test_a_master_that_is_killed_is_an_error_that_passes(cases, own_redis_nodes, tmp_path):
    case = cases["plain"]
    graph = saved(case.graph, tmp_path)
    url = cluster_url(own_redis_nodes)
    await push(graph, url)
    store = await opened(url, tmp_path)
    stored, local = answerer_on(case, store.graph, False), case.answerer(False)
    own_redis_nodes[1].kill()
    outcomes = []
    for first in range(0, 60, 3):
        request = request_of(case, [first])
        try:
            found, _ = await answer(stored, store, request)
        except GraphStoreUnavailable as error:
            outcomes.append(error)
        else:
            assert same(found, local.answer([request])[0])
    for error in outcomes:
        assert "redis cluster" in str(error)
    await store.close()


async def test_a_master_that_hangs_does_not_hold_the_others(cases, own_redis_nodes, tmp_path):
    graph = saved(cases["plain"].graph, tmp_path)
    url = cluster_url(own_redis_nodes)
    await push(graph, url)
    store = await opened(url, tmp_path)
    own_redis_nodes[2].signal(signal.SIGSTOP)
    try:
        import asyncio

        task = asyncio.ensure_future(store.fetch({"node__to__node": np.arange(5)}, _INDICES))
        done, _ = await asyncio.wait([task], timeout=0.2)
        if not done:
            task.cancel()
    finally:
        own_redis_nodes[2].signal(signal.SIGCONT)
    found = await store.fetch({"node__to__node": np.arange(5)}, _INDICES)
    indices = np.asarray(graph.edges["node__to__node"].indices)
    assert np.array_equal(found["node__to__node"].columns["indices"], indices[:5])
    await store.close()


_INDICES = {"node__to__node": ("indices",)}


async def test_host_parts_are_read_once_and_verified(cases, redis_nodes, tmp_path):
    graph = saved(cases["sage"].graph, tmp_path)
    url = cluster_url(redis_nodes, "host:")
    await push(graph, url)
    first = await opened(url, tmp_path)
    await first.close()
    (folder,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    second = await opened(url, tmp_path)
    await second.close()
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    key = f"host:graph:{graph.version}:nodes/node/features:0"
    redis_nodes[0].call("-c", "SETRANGE", key, "8", "xxxx")
    with pytest.raises(GraphStoreError, match=r"features.*damaged"):
        await opened(url, tmp_path / "other")


async def test_features_may_be_left_to_a_feature_store(cases, redis_nodes, tmp_path):
    graph = saved(cases["sage"].graph, tmp_path)
    url = cluster_url(redis_nodes, "bare:")
    await push(graph, url, features=False)
    store = await opened(url, tmp_path)
    features = store.graph.nodes["node"].features
    assert features.shape == graph.nodes["node"].features.shape
    with pytest.raises(ValueError, match=r"features.store"):
        features[:3]
    await store.close()


def test_a_host_reads_features_only_where_they_are_pushed():
    """Whatever the node types are called."""
    nodes = {name: NodeTable(np.ones((3, 2)), ids=["a", "b", "c"]) for name in ("ids", "features")}
    edges = {("ids", "to", "features"): EdgeTable((["a", "b"], ["b", "c"]))}
    graph = Graph.from_tables(nodes, edges)
    whole, bare = (host_arrays(graph, features=each).keys() for each in (True, False))
    assert whole - bare == {"nodes/ids/features", "nodes/features/features"}


async def test_wrong_addresses_and_versions_say_what_is_wrong(cases, redis_nodes, redis_server, tmp_path):
    with pytest.raises(ConfigError, match=r"graph.store: .*redis\+cluster"):
        await opened(f"redis://127.0.0.1:{redis_nodes[0].port}", tmp_path)
    with pytest.raises(ConfigError, match=r"graph.store: no connection"):
        await opened("redis://127.0.0.1:1", tmp_path)
    with pytest.raises(GraphStoreError, match=r"no graph was pushed below the prefix 'none:'"):
        await opened(f"{redis_server.url}?prefix=none:", tmp_path)
    await push(saved(cases["sage"].graph, tmp_path), f"{redis_server.url}?prefix=one:")
    with pytest.raises(GraphStoreError, match=r"'0000'.*complete graphs: "):
        await opened(f"{redis_server.url}?prefix=one:", tmp_path, "0000")


async def test_servers_that_may_evict_edges_are_refused(cases, own_redis_nodes, tmp_path):
    url = cluster_url(own_redis_nodes)
    graph = saved(cases["sage"].graph, tmp_path)
    own_redis_nodes[2].call("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
    told = rf"^URL: .*:{own_redis_nodes[2].port} has the memory policy allkeys-lfu"
    with pytest.raises(ConfigError, match=told):
        await push(graph, url)
    # Edges have no expiry, so this policy, the default of many managed servers, keeps them.
    own_redis_nodes[2].call("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    await push(graph, url)
    own_redis_nodes[0].call("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    with pytest.raises(ConfigError, match="memory policy allkeys-random"):
        await opened(url, tmp_path)


async def test_a_server_that_does_not_report_its_policy_is_warned_about(cases, tmp_path, caplog):
    hidden = ("--rename-command", "INFO", "", "--rename-command", "CONFIG", "")
    with redis_process(*hidden) as server:
        await push(saved(cases["sage"].graph, tmp_path), server.url)
    assert [record.levelname for record in caplog.records if "memory policy" in record.message] == [
        "WARNING"
    ]


async def test_edges_do_not_expire(redis_server, tmp_path):
    with pytest.raises(ConfigError, match=r"graph.store: ttl_s is for rows of features"):
        await opened(f"{redis_server.url}?ttl_s=60", tmp_path)


def test_every_part_reads_back_as_the_bytes_of_the_graph(cases):
    graph = cases["sage"].graph
    for part in parts_of(graph, host_arrays(graph, features=True)):
        whole = part.read(0, part.num_bytes)
        assert whole.shape == (part.num_bytes,)


def test_keys_have_no_hash_tag():
    redis = Redis("redis://127.0.0.1:1", "x")
    assert b"{" not in redis.key("v", "edges/a%7Bb/indices")


positions = st.lists(st.integers(0, 5000), min_size=0, max_size=60, unique=True).map(sorted)


@given(positions, st.sampled_from([1, 7, 64, 1000]), st.integers(1, 4))
def test_entries_come_back_from_the_bytes_of_their_ranges(wanted, chunk_entries, entry_bytes):
    wanted = np.array(wanted, np.int64)
    values = np.random.default_rng(0).integers(0, 256**entry_bytes, 5001).astype("<i8")
    raw = values.view(np.uint8).reshape(-1, 8)[:, :entry_bytes]
    ranges = ranges_of(wanted, chunk_entries, entry_bytes)
    sizes = ranges.lasts - ranges.firsts + 1
    assert (sizes <= MAX_RANGE_BYTES).all()
    rows = np.zeros((len(sizes), max(1, int(sizes.max(initial=0)))), np.uint8)
    for row, (chunk, first, last) in enumerate(
        zip(ranges.chunks, ranges.firsts, ranges.lasts, strict=True)
    ):
        content = raw[chunk * chunk_entries : (chunk + 1) * chunk_entries].reshape(-1)
        assert last < len(content)
        rows[row, : last - first + 1] = content[first : last + 1]
    out = np.empty(len(wanted), np.int64)
    entries(rows, ranges, entry_bytes, out)
    assert np.array_equal(out, values[wanted])


def test_close_positions_share_a_range_and_far_ones_do_not():
    ranges = ranges_of(np.array([0, 1, 2, 10, 500, 501]), 1000, 4)
    assert ranges.firsts.tolist() == [0, 2000]
    assert ranges.lasts.tolist() == [43, 2007]
