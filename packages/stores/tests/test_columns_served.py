"""Models with preprocessing whose columns lie in a store: a server, its workers, faults and ages."""

import time

import httpx
import numpy as np
import pandas as pd
import pytest

import hopline
from hopline.types import InlineNode
from packages.stores.tests.prefetch import conftest as processes
from packages.stores.tests.prefetch.test_processes import DONE, UP
from packages.tabular.tests import fraud_graph as fraud
from packages.tabular.tests.fraud_world import FRAME, ROW, fitted_form
from tests.commands.typed import typed
from tests.redis_servers import redis_process
from tests.servers import running

STORED = {name: str(value) for name, value in ROW.items()} | {"active": "true"}


def key(row):
    return f"hopline:account:a{row}"


@pytest.fixture
def redis(world):
    with redis_process() as server:
        graph = world.report.path.parents[2] / "graph"
        loaded = typed("features", "load", "--store", f"{server.url}?absent=null", "--graph", graph)
        assert loaded.exit_code == 0, loaded.output
        assert "account: 300 rows of 6 columns" in loaded.stdout
        yield server


def settings(world, url, **more):
    folder = world.report.path.parents[2]
    return {
        "graph__path": folder / "graph",
        "models__repository": folder / "models",
        "features__store": url,
        "features__fetch_timeout_ms": 2000.0,
        "features__negative_ttl_ms": 1.0,
        **more,
    }


def logits(client, nodes, **more):
    return client.score("risk", nodes, outputs=["logits"], **more)


def changed(world, row):
    """PyG's answers if an account had the columns of `FRAME`."""
    frame = fitted_form(world.frame)
    frame.loc[row] = fitted_form(FRAME).loc[0]
    kept, world.x = world.x, {**world.x, "account": fraud.dense(world.fitted["account"].transform(frame))}
    try:
        return world.pyg()
    finally:
        world.x = kept


def test_answers_are_those_of_the_graph_and_follow_what_is_written(world, redis):
    url = f"{redis.url}?absent=null"
    graph = world.report.path.parents[2] / "graph"
    same = typed("features", "check", "--store", url, "--graph", graph)
    assert (same.exit_code, same.stdout) == (0, "account: same\nmerchant: same\n")
    with (
        running("hopline.service:Service", **settings(world, url, features__ttl_s=1.0)) as server,
        hopline.Client(server.url) as client,
    ):
        found = logits(client, world.ids)
        assert found.degraded == ()
        np.testing.assert_allclose(found.outputs["logits"], world.pyg(), atol=1e-4, rtol=1e-4)
        redis.call("DEL", key(7))
        redis.call("HSET", key(7), *(word for pair in STORED.items() for word in pair))
        written = time.monotonic()
        expected, before = changed(world, 7), world.pyg()
        assert np.abs(expected[7] - before[7]).max() > 1e-3
        while True:
            asked = time.monotonic()
            answer = logits(client, ["a7"])
            assert answer.degraded == ()
            assert answer.features_age_ms <= 1100
            if np.allclose(answer.outputs["logits"], expected[[7]], atol=1e-4):
                break
            assert asked - written < 1.0, "an answer stands on a row that is older than features.ttl_s"
            np.testing.assert_allclose(answer.outputs["logits"], before[[7]], atol=1e-4)
            time.sleep(0.05)
        inline = client.score_inline("risk", [InlineNode(columns=ROW)], outputs=["logits"])
        redis.call("HSET", key(300), "amount", "1")
        assert inline.outputs["logits"].shape == (1, 2)
        different = typed("features", "check", "--store", url, "--graph", graph)
        assert different.exit_code == 1
        assert "1 of 300 rows are different: 'a7'" in different.stdout


def test_what_a_row_lacks_is_labelled_and_named_and_a_wrong_value_is_no_feature(world, redis):
    for row in range(len(world.ids)):  # nulls as this writer has them
        if redis.call("HGET", key(row), "country") is None:
            redis.call("HSET", key(row), "country", "??")
        for name in ("amount", "active", "opened"):
            redis.call("HSETNX", key(row), name, "")
    faults = {
        1: ("HDEL", "amount", "column 'amount' is missing"),
        2: ("HSET", "age", "old", "column 'age': 'old' instead of a whole number"),
        3: ("HSET", "active", "yes", "column 'active': 'yes' instead of true or false"),
        4: ("HSET", "opened", "31/01/2024", "column 'opened': '31/01/2024' instead of a time"),
    }
    for row, (verb, *words, _) in faults.items():
        redis.call(verb, key(row), *words)
    redis.call("DEL", key(5))
    with (
        running("hopline.service:Service", **settings(world, redis.url)) as server,
        hopline.Client(server.url) as client,
    ):
        for row in (*faults, 5):
            assert "mean_features" in logits(client, [f"a{row}"]).degraded
            refused = httpx.post(
                f"{server.url}/v1/models/risk/score", json={"nodes": [f"a{row}"], "degraded": "refuse"}
            )
            assert refused.status_code == 503
            assert ("missing" if row == 5 else "invalid") in refused.json()["error"]["message"]
            time.sleep(0.01)
    log = "".join(server.log)
    assert any(
        f"group 'account': the row of 'a{row}': {said}" in log for row, (*_, said) in faults.items()
    ), log


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda types: types.pop("mcc"), "the store has no column 'mcc' (text)"),
        (lambda types: types.update(mcc="integer"), "column 'mcc' is integer in the store, and text is"),
    ],
    ids=["gone", "changed"],
)
def test_a_store_without_the_columns_that_a_model_reads_is_refused_with_the_difference(
    world,
    tmp_path,
    change,
    said,
):
    frame = world.frame.rename_axis("id").reset_index()
    frame["id"] = world.ids
    types = dict.fromkeys(frame.columns)
    change(types)
    stored = frame[[name for name in frame if name in types]]
    if types.get("mcc"):
        stored = stored.assign(mcc=stored["mcc"].astype(int))
    stored.to_parquet(tmp_path / "account.parquet")
    fraud.merchants().rename_axis("id").reset_index().to_parquet(tmp_path / "merchant.parquet")
    with (
        pytest.raises(AssertionError, match="did not start") as raised,
        running(
            "hopline.service:Service",
            **settings(world, f"parquet://{tmp_path}", models__required="all"),
        ),
    ):
        pass
    assert said in str(raised.value)


@pytest.mark.release
def test_columns_of_parquet_files_are_served(world, tmp_path):
    accounts = world.frame.assign(id=world.ids, unread=1.5, opened=pd.to_datetime(world.frame["opened"]))
    accounts.to_parquet(tmp_path / "account.parquet")
    fraud.merchants().rename_axis("id").reset_index().to_parquet(tmp_path / "merchant.parquet")
    with (
        running("hopline.service:Service", **settings(world, f"parquet://{tmp_path}")) as server,
        hopline.Client(server.url) as client,
    ):
        found = logits(client, world.ids)
        assert found.degraded == ()
        np.testing.assert_allclose(found.outputs["logits"], world.pyg(), atol=1e-4, rtol=1e-4)


@pytest.mark.release
def test_workers_share_encoded_rows(world, redis):
    url = f"{redis.url}?absent=null"
    with (
        running("hopline.service:Service", **settings(world, url, server__workers=2)) as server,
        hopline.Client(server.url) as client,
    ):
        for _ in range(6):
            with hopline.Client(server.url) as other:
                found = logits(other, world.ids)
                np.testing.assert_allclose(found.outputs["logits"], world.pyg(), atol=1e-4, rtol=1e-4)
        redis.call("CONFIG", "RESETSTAT")
        for _ in range(6):
            with hopline.Client(server.url) as other:
                logits(other, world.ids[:50])
        calls = redis.call("INFO", "commandstats")
        assert b"cmdstat_hmget" not in calls
        assert client.score("risk", ["a1"]).degraded == ()


@pytest.mark.release
def test_a_prefetcher_fetches_and_encodes_for_the_workers(world, redis, tmp_path):
    paths = {"shared_file": tmp_path / "rows", "prefetcher": tmp_path / "socket"}
    given = settings(world, f"{redis.url}?absent=null") | {
        "features__memory_bytes": 2**22, "server__http_port": 0, "server__grpc_port": -1,
        "state_cache__memory_bytes": 0, **{f"features__{name}": path for name, path in paths.items()},
    }  # fmt: skip
    given = {name.replace("__", "."): value for name, value in given.items()}
    with (
        processes.running("prefetch", given),
        processes.running("serve", given) as server,
        hopline.Client(server.url) as client,
    ):
        server.wait_for_metric(UP, 1)
        for nodes in (world.ids[:1], world.ids[3:9], world.ids):
            found = logits(client, nodes)
            assert found.degraded == ()
            rows = [world.ids.index(node) for node in nodes]
            np.testing.assert_allclose(found.outputs["logits"], world.pyg()[rows], atol=1e-4, rtol=1e-4)
        assert server.metric(DONE) > 0
        assert server.metric("hopline_prefetch_rows_total") == 340
        assert server.metric('hopline_feature_rows_total{tier="origin",result="found"}') == 0


@pytest.mark.release
def test_a_live_graph_has_the_nodes_and_the_store_their_columns(world, redis, tmp_path):
    live = {"live__enabled": True, "live__folder": tmp_path / "live"}
    redis.call("HSET", "hopline:account:new", *(word for pair in STORED.items() for word in pair))
    event = {"op": "add_node", "node_type": "account", "node": "new", "columns": ROW | {"country": "DE"}}
    edges = [
        {"op": "add_edge", "edge_type": "merchant__paid_by__account", "src": merchant, "dst": "new"}
        for merchant in (3, 5)
    ]
    given = settings(world, f"{redis.url}?absent=null", **live)
    with (
        running("hopline.service:Service", **given) as server,
        hopline.Client(server.url) as client,
    ):
        outcome = client.send_events([event, *edges])
        assert not outcome.refused
        found = logits(client, ["new", *world.ids[:20]], min_version=outcome.graph_version)
        assert found.degraded == ()
        expected = world.pyg(fitted_form(FRAME), [[3, 5]])[-1]
        np.testing.assert_allclose(found.outputs["logits"][0], expected, atol=1e-4)
        np.testing.assert_allclose(found.outputs["logits"][1:], world.pyg()[:20], atol=1e-4)
        without = client.send_events([{**event, "node": "bare"}])  # the store has no row of it
        assert "mean_features" in logits(client, ["bare"], min_version=without.graph_version).degraded
