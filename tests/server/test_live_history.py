"""A server whose nodes keep the rows that they had: answers about then, from every worker, over kills."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.server.live_rig import Live, World, row, same, serving, until


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, history=True)


def moments(world: World, live: Live, names: list[str]) -> None:
    """Now, and at times before, between and after the rows of events."""
    for number, as_of in enumerate((None, 0, 40, 85, 129, 500)):
        asked = {"nodes": names} if as_of is None else {"nodes": names, "as_of": as_of}
        same(live.workers[number % 2].score("plain", **asked), world.wanted("plain", **asked))


def test_rows_of_then_survive_kills_and_restarts(world: World) -> None:
    names = world.rows[:20]
    with serving(workers=2, **world.settings()) as live:
        for _ in range(4):
            live.workers[0].applied(world.events(25))
            moments(world, live, names)
        os.kill(live.writer, signal.SIGKILL)
        events = world.events(25)
        until(lambda: live.workers[1].send(events).status_code == 200)
        moments(world, live, names)
    with serving(workers=2, **world.settings()) as live:
        moments(world, live, names)
        live.workers[1].applied(world.events(10))
        moments(world, live, names)


def test_rows_without_a_time_and_edges_before_their_node_are_refused(world: World) -> None:
    features = row(world.rng, 6).tolist()
    edge = {"op": "add_edge", "dst": "n1", "weight": 1.0, "attr": [0.0, 0.0]}
    events = [
        {"op": "set_features", "node": "n1", "features": features},
        {"op": "add_node", "node": "late", "features": features, "time": 50},
        {**edge, "src": "late", "time": 49},
        {**edge, "src": "late", "time": 50},
    ]
    with serving(workers=2, **world.settings()) as live:
        answer = live.workers[0].send(events).json()
        assert [(each["index"], each["code"]) for each in answer["refused"]] == [
            (0, "no_time"),
            (2, "unknown_node"),
        ]
        assert "is older than its node, which exists from its first row" in answer["refused"][1]["reason"]
        found = live.workers[1].http.post("/v1/models/plain/score", json={"nodes": ["late"], "as_of": 49})
        assert (found.status_code, found.json()["error"]["code"]) == (404, "node_not_found")
        assert (
            live.workers[1]
            .http.post("/v1/models/plain/score", json={"nodes": ["late"], "as_of": 50})
            .is_success
        )


def test_nodes_of_a_request_are_kept_as_of_its_time(world: World) -> None:
    node = {"id": "new", "features": row(world.rng, 6).tolist(), "neighbors": ["n3"],
            "edge_attr": [[0.5, 0.5]], "edge_weight": [1.0]}  # fmt: skip
    with serving(workers=2, **world.settings()) as live:
        asked = {"inline": [node], "keep": True}
        refused = live.workers[0].http.post("/v1/models/plain/score", json=asked)
        assert refused.status_code == 400
        assert "has a history; with keep, as_of is the time of new nodes" in refused.text
        kept = live.workers[0].score("plain", **asked, as_of=70)
        again = live.workers[1].score("plain", nodes=["new"], as_of=70)
        same(again, kept["outputs"])
        before = live.workers[1].http.post("/v1/models/plain/score", json={"nodes": ["new"], "as_of": 69})
        assert before.status_code == 404
