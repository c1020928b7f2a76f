"""Results in a feature store: what readers see meanwhile, what is left behind, and a store that fails."""

import asyncio
import dataclasses
import shutil
from itertools import count

import numpy as np
import pytest

from hopline.config.reader import load_config
from hopline.errors import ConfigError, SinkError
from hopline.features.registry import open_store
from hopline.jobs.batch.registry import open_sink
from hopline.jobs.batch.sink import Column
from hopline.service import Service
from hopline.types import ScoreRequest
from hopline_stores import sink as store_sink
from hopline_stores.published import NOTE, read_catalog
from hopline_stores.sink import StoreSink
from hopline_stores.testing.sinks import SinkSuite, check, feed, ids_of, schema_of, values_of, write
from tests.jobs.batch.conftest import cases  # noqa: F401
from tests.jobs.batch.places import StorePlace
from tests.s3_server import s3_server

NUM_ROWS = 300
OTHER = "fedcba9876543210"
NUMBERS = count()


@pytest.fixture
def place(own_redis, monkeypatch):
    monkeypatch.setattr(store_sink, "_PAUSES_S", (0.01,))
    place = StorePlace(f"{own_redis.url}?prefix=p:", ())
    place.open = lambda: StoreSink(place.url, keep_s=0.0)
    return place


def keys(server):
    return sorted(server.call("--raw", "KEYS", "*").decode().split("\n")[:-1])


def test_rows_lie_where_a_redis_store_reads_them(place, own_redis):
    schema = schema_of(place, NUM_ROWS)
    write(place, schema)
    run = schema.run_id
    raw = own_redis.call("--raw", "GET", f"p:{run}.embedding:{ids_of(schema)[7]}")[:20]
    np.testing.assert_array_equal(np.frombuffer(raw, "<f4"), values_of(schema)["embedding"][7])

    async def direct():
        store = open_store(place.url)
        await store.open()
        group = await store.describe(f"{run}.label")
        rows = await store.fetch(group, ids_of(schema))
        await store.close()
        return group, rows

    group, rows = asyncio.run(direct())
    assert (group.dim, group.dtype) == (1, "float64")
    np.testing.assert_array_equal(rows.values[:, 0], values_of(schema)["label"])


def test_nothing_is_left_of_the_generation_before(place, own_redis):
    old = schema_of(place, NUM_ROWS, run_id=OTHER)
    write(place, old)
    write(place, schema_of(place, 10))
    assert not [key for key in keys(own_redis) if OTHER in key]
    # ids, a note of ids, schemas, the groups' names, the catalog
    assert len(keys(own_redis)) == 3 * 10 + 1 + 3 + 1 + 1


def test_nothing_is_left_of_an_attempt_that_was_given_up(place, own_redis):
    schema = schema_of(place, NUM_ROWS, run_id=OTHER)
    lost = place.open()
    lost.open(schema)
    feed(lost, schema, 0, 200)  # and no word of how far it came, as after a kill
    lost._close()
    write(place, schema_of(place, 10))
    assert not [key for key in keys(own_redis) if OTHER in key]


@pytest.mark.parametrize("calls", range(0, 20, 3))
def test_a_removal_that_was_killed_is_done_by_the_next_run(place, own_redis, calls):
    write(place, schema_of(place, NUM_ROWS, run_id=OTHER))
    sink = place.open()
    new = schema_of(place, 10)
    sink.open(new)
    feed(sink, new, 0, 10)
    left = [calls]
    remove = sink._store.remove

    class Killed(BaseException):
        pass

    async def killed(*args):
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        await remove(*args)

    sink._store.remove = killed
    with pytest.raises(Killed):
        sink.commit()
    check(place, new)  # the switch was before
    write(place, schema_of(place, 5, run_id="00ff00ff00ff00ff"))
    assert not [key for key in keys(own_redis) if OTHER in key or new.run_id in key]


def test_a_redis_that_dies_in_the_middle_is_reported_and_the_next_start_goes_on(place, own_redis):
    schema = schema_of(place, NUM_ROWS)
    sink = place.open()
    sink.open(schema)
    feed(sink, schema, 0, 100)
    own_redis.kill()
    with pytest.raises(SinkError, match="fix this and start the same command again"):
        feed(sink, schema, 100, NUM_ROWS)
    sink.abort()
    own_redis.start()  # with nothing in it
    sink = place.open()
    assert sink.open(schema) == 0
    feed(sink, schema, 0, NUM_ROWS)
    sink.commit()
    check(place, schema)


def test_a_redis_that_was_started_anew_unseen_is_not_published_from(place, own_redis):
    schema = schema_of(place, NUM_ROWS)
    sink = place.open()
    sink.open(schema)
    feed(sink, schema, 0, 200)
    own_redis.kill()
    own_redis.start()
    feed(sink, schema, 200, NUM_ROWS)  # a lost connection is made again
    with pytest.raises(SinkError, match="has restarted, and may have lost rows"):
        sink.commit()
    assert place.read(ids_of(schema)) is None


def test_a_redis_without_room_says_so(place, own_redis):
    schema = schema_of(place, NUM_ROWS)
    sink = place.open()
    sink.open(schema)
    own_redis.call("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(SinkError, match="OOM"):
        feed(sink, schema, 0, NUM_ROWS)
    own_redis.call("CONFIG", "SET", "maxmemory", "0")
    sink.abort()


def test_of_two_runs_to_one_place_the_later_wins(place):
    first, second = schema_of(place, NUM_ROWS), schema_of(place, NUM_ROWS, run_id=OTHER)
    early, late = place.open(), place.open()
    early.open(first)
    feed(early, first, 0, NUM_ROWS)
    late.open(second)
    with pytest.raises(SinkError, match="another run has begun"):
        early.commit()
    feed(late, second, 0, NUM_ROWS, seed=1)
    late.commit()
    check(place, second, seed=1)


def test_how_far_it_came_is_saved_meanwhile(place, monkeypatch):
    monkeypatch.setattr(store_sink, "_SAVE_S", 0.0)
    schema = schema_of(place, NUM_ROWS)
    lost = place.open()
    lost.open(schema)
    feed(lost, schema, 0, 200)
    lost._close()
    sink = place.open()
    assert sink.open(schema) == 200
    feed(sink, schema, 200, NUM_ROWS)
    sink.commit()
    check(place, schema)


def test_tables_of_several_names_share_a_store(place):
    for seed, name in enumerate(("fraud", "churn")):
        schema = schema_of(place, NUM_ROWS, run_id=f"{seed:016x}")
        sink = open_sink(f"{place.url}&keep_s=0&name={name}")
        sink.open(schema)
        feed(sink, schema, 0, NUM_ROWS, seed=seed)
        sink.commit()
    for seed, name in enumerate(("fraud", "churn")):
        check(place, dataclasses.replace(schema, part=name), seed=seed)


async def _following(url, clock, ids, publish):
    store = open_store(f"published+{url}")
    store._clock = lambda: clock[0]
    await store.open()
    try:
        group = await store.describe("embedding")
        before = await store.fetch(group, ids)
        await asyncio.to_thread(publish)
        clock[0] += 0.5
        at_once = await store.fetch(group, ids)
        clock[0] += 0.6
        after = await store.fetch(group, ids)
        return before, at_once, after
    finally:
        await store.close()


@pytest.mark.parametrize("keep_s", [0.0, 60.0])
def test_readers_follow_within_a_second_and_lack_nothing_meanwhile(place, keep_s):
    old, new = schema_of(place, NUM_ROWS, run_id=OTHER), schema_of(place, NUM_ROWS)
    write(place, old)

    def publish():
        sink = StoreSink(place.url, keep_s=keep_s)
        sink.open(new)
        feed(sink, new, 0, NUM_ROWS, seed=1)
        if keep_s:  # the rest of `commit` waits for readers
            with pytest.raises(TimeoutError):
                sink._runner.run(asyncio.wait_for(sink._commit(), 0.5))
            sink._close()
        else:
            sink.commit()

    found = asyncio.run(_following(place.url, [100.0], ids_of(old), publish))
    before, at_once, after = (rows.values for rows in found)
    assert all(rows.found.all() for rows in found)
    a, b = values_of(old)["embedding"], values_of(new, 1)["embedding"]
    np.testing.assert_array_equal(before, a)
    # Rows that are gone are looked for in what is current; else those that are still there are read.
    np.testing.assert_array_equal(at_once, a if keep_s else b)
    np.testing.assert_array_equal(after, b)


def test_a_server_serves_them_as_features(place, cases, tmp_path):  # noqa: F811
    case = cases["sage"]
    nodes = case.graph.nodes["node"]
    column = Column("embedding", "float32", nodes.features.shape[1])
    schema = schema_of(place, nodes.num_nodes, columns=(column,))
    sink = place.open()
    sink.open(schema)
    ids = nodes.ids.external(np.arange(nodes.num_nodes))
    sink.write(0, {"id": ids, "embedding": np.array(nodes.features, np.float32)})
    sink.commit()
    request = ScoreRequest("sage", nodes=ids, outputs=("logits",))
    shutil.copytree(case.folder, tmp_path / "sage" / "1")

    async def answers(**settings):
        places = {"graph.path": case.graph.path, "models.repository": tmp_path}
        service = Service(load_config(overrides={**places, **settings}))
        await service.start()
        try:
            return (await service.score(request)).outputs["logits"]
        finally:
            service.begin_drain()
            await service.drain(5)
            await service.close()

    store = {"features.store": f"published+{place.url}", "features.groups": ["node=embedding"]}
    found = asyncio.run(
        answers(**store, **{"features.memory_bytes": 2**22, "features.fetch_timeout_ms": 2000})
    )
    np.testing.assert_array_equal(found, asyncio.run(answers()))


def test_a_damaged_catalog_is_reported(place, own_redis):
    own_redis.call("SET", f"p:#{NOTE}", "{")
    with pytest.raises(SinkError, match="damaged"):
        place.open().open(schema_of(place, 10))


def test_what_was_published_says_what_it_is(place, own_redis):
    write(place, schema_of(place, 10, graph_version="g7"))
    catalog = read_catalog(own_redis.call("--raw", "GET", f"p:#{NOTE}").rstrip(b"\n"), "redis")
    about = catalog.generations[catalog.current[""]].about
    assert (about["model"], about["version"], about["graph_version"]) == ("m", "1", "g7")


def test_only_stores_that_publish_are_followed():
    with pytest.raises(ConfigError, match="published"):
        open_store("published+memory:")


def test_passwords_are_not_shown():
    with pytest.raises(SinkError) as raised:
        open_sink("rdis://me:secret@h")
    assert "secret" not in str(raised.value)


class TestRedis(SinkSuite):
    @pytest.fixture
    def place(self, redis_server):
        url = f"{redis_server.url}?prefix=p{next(NUMBERS)}:"
        wrong = (
            "redis://:secret@127.0.0.1:1",
            f"redis://:secret@127.0.0.1:{redis_server.port}",
            f"{url}&keep_s=soon",
            f"{url}&name=a:b",
            f"{url}&prfix=x",
        )
        place = StorePlace(url, wrong)
        place.resumes = 200
        return place


@pytest.mark.release
class TestRedisCluster(SinkSuite):
    @pytest.fixture
    def place(self, redis_nodes):
        url = f"redis+cluster://127.0.0.1:{redis_nodes[0].port}?prefix=p{next(NUMBERS)}:"
        place = StorePlace(url, ())
        place.resumes = 200
        return place


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    """The address of what plays S3 and DynamoDB."""
    with s3_server(str(tmp_path_factory.mktemp("aws") / "absent")) as url:
        yield url


@pytest.mark.release
class TestDynamoDb(SinkSuite):
    @pytest.fixture
    def place(self, aws):
        query = f"region=eu-central-1&endpoint_url={aws}&create=true&timeout_ms=9000"
        place = StorePlace(f"dynamodb://results-{next(NUMBERS)}?{query}", ("dynamodb://absent",))
        place.resumes = 200
        return place
