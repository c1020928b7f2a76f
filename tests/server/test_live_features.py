"""A live graph whose features are in a feature store: edges from events, rows from the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopline.features.base import FeatureGroup
from hopline.features.registry import open_store
from packages.brokers.tests.servers import RedisServer, broker_server
from tests.server.live_rig import World, row, same, serving

GROUP = FeatureGroup("node", 6)


@pytest.fixture
def store() -> Iterator[str]:
    with broker_server(RedisServer) as server:
        yield f"redis://127.0.0.1:{server.port}/1"


def write(store: str, rows: dict[str, np.ndarray]) -> None:
    """Write feature rows, as another system does."""

    async def put() -> None:
        opened: Any = open_store(store, "test")
        await opened.open()
        await opened.create(GROUP)
        await opened.write(GROUP, list(rows), np.stack(list(rows.values())))
        await opened.close()

    asyncio.run(put())


@pytest.mark.release
def test_edges_are_in_the_graph_and_features_in_the_store(tmp_path: Path, store: str) -> None:
    world = World(tmp_path / "world")
    world.nodes = {name: row(world.rng, 6) for name in world.nodes}  # not those of the graph folder
    write(store, world.nodes)
    settings = {"features__store": store, "features__memory_bytes": 2**22, "features__ttl_s": 0.2}
    with serving(live__folder=tmp_path / "live", **world.settings(), **settings) as server:
        (worker,) = server.workers
        seeds = ["n0", "n7", "n11", "n3"]
        answer = worker.score("plain", nodes=seeds)  # the graph has had no event yet
        same(answer, world.wanted("plain", nodes=seeds))
        assert answer["features_age_ms"] >= 0
        events = [
            {"op": "add_edge", "src": src, "dst": dst, "time": 100 + at, "weight": 1.0, "attr": [0.5, at]}
            for at, (src, dst) in enumerate([("n1", "n0"), ("n2", "n0"), ("n9", "n7")])
        ]
        world.edges += [
            (e["src"], e["dst"], e["time"], e["weight"], np.array(e["attr"], np.float32)) for e in events
        ]
        world.nodes["new"] = row(world.rng, 6)
        world.rows.append("new")
        write(store, {"new": world.nodes["new"]})
        events += [{"op": "add_node", "node": "new"}, {**events[0], "src": "new"}]
        world.edges.append(("new", *world.edges[-3][1:]))
        answer = worker.applied(events)
        found = worker.score("plain", nodes=[*seeds, "new"], min_version=answer["graph_version"])
        same(found, world.wanted("plain", nodes=[*seeds, "new"]))
        assert found["graph_version"] == answer["graph_version"]
        # rows that the store changes are read again when they are old, and the answer says how old it is
        world.nodes["n0"] = row(world.rng, 6)
        write(store, {"n0": world.nodes["n0"]})
        wanted = world.wanted("plain", nodes=seeds)
        while True:
            began = time.monotonic()
            found = worker.score("plain", nodes=seeds)
            assert found["features_age_ms"] <= 400 + 1e3 * (time.monotonic() - began)
            if all(np.array_equal(found["outputs"][name], wanted[name]) for name in wanted):
                break
        features = row(world.rng, 6).tolist()
        refused = worker.send(
            [
                {"op": "set_features", "node": "n1", "features": features},
                {"op": "add_node", "node": "other", "features": features},
            ]
        ).json()
        assert [each["code"] for each in refused["refused"]] == ["schema_changed", "schema_changed"]
