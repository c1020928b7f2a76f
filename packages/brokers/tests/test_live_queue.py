"""Score requests of a broker to a live graph that need a version of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hopline.brokers.base import Message, Outgoing
from hopline.brokers.registry import open_sink, open_source
from hopline_brokers.testing.suite import collect
from packages.brokers.tests.servers import RedisServer, broker_server
from tests.server.live_rig import World, serving

SEEDS = ["n0", "n7"]


def headers_of(body: dict[str, Any]) -> dict[str, str]:
    return {"request-id": body.get("min_version", "none")}


async def put(address: str, bodies: Sequence[dict[str, Any]]) -> None:
    sink = open_sink(address, "test")
    await sink.open()
    await sink.send(
        [
            Outgoing(
                json.dumps({"model": "plain", "nodes": SEEDS} | body).encode(), headers=headers_of(body)
            )
            for body in bodies
        ]
    )
    await sink.close()


async def answers(address: str, count: int) -> list[Message]:
    source = open_source(address, "test")
    await source.open({})
    try:
        return await collect(source, count)
    finally:
        await source.close()


@pytest.mark.release
def test_a_version_that_is_missing_holds_no_others_up_and_is_answered_once_it_is_there(
    tmp_path: Path,
) -> None:
    """The limits of time are minutes: without them the test would take as long."""
    world = World(tmp_path / "world")
    with broker_server(RedisServer) as broker:
        settings = {
            "queues__requests": broker.address("requests"),
            "queues__results": "results",
            "queues__concurrency": 4,
            "queues__retry_s": 120.0,
            "live__min_version_wait_ms": 60_000.0,
        }
        with serving(**world.settings(), **settings) as server:
            (worker,) = server.workers
            lineage = worker.graph()["graph_version"]
            waiting = [{"min_version": f"{lineage}+{number}"} for number in range(1, 9)]
            asyncio.run(put(broker.address("requests"), [*waiting, *([{}] * 20)]))
            given = asyncio.run(answers(broker.address("results"), 20))
            assert {message.headers["request-id"] for message in given} == {"none"}
            for _ in range(8):
                worker.applied(world.events(1))
            given = asyncio.run(answers(broker.address("results"), 28))[20:]
            for message in given:
                offset = int(json.loads(message.payload)["graph_version"].partition("+")[2])
                assert offset >= int(message.headers["request-id"].partition("+")[2])
            assert {message.headers["request-id"] for message in given} == {
                body["min_version"] for body in waiting
            }
