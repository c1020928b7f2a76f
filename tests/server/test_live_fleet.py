"""Servers that follow one stream: equal versions are equal answers, and writes can be read anywhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from hopline.brokers.base import Outgoing
from hopline.brokers.registry import open_sink
from hopline.transports.http_answers import Applied
from hopline_brokers.testing.servers import BrokerServer
from packages.brokers.tests.servers import KafkaServer, NatsServer, RedisServer, broker_server
from tests.server.live_rig import OUTPUTS, World, same, serving, until

SCORE = "/v1/models/plain/score"
SEEDS = ["n0", "n7", "n11", "n3"]


KINDS: dict[str, type[BrokerServer]] = {"redis": RedisServer, "nats": NatsServer, "kafka": KafkaServer}


@pytest.fixture(scope="module", params=KINDS)
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerServer]:
    with broker_server(KINDS[request.param]) as found:
        yield found


def with_release(*kinds: str) -> pytest.MarkDecorator:
    """Brokers of a test; these are left to the check of a release. All have the conformance suite."""
    given = [pytest.param(kind, marks=pytest.mark.release) if kind in kinds else kind for kind in KINDS]
    return pytest.mark.parametrize("broker", given, indirect=True, scope="module")


@pytest.fixture
def stream(broker: BrokerServer, request: pytest.FixtureRequest) -> str:
    """The address of a stream of the test's own."""
    topic = request.node.originalname.removeprefix("test_")[:40]
    asyncio.run(broker.make(topic))
    return broker.address(topic, **({"partition": 0} if broker.scheme == "kafka" else {}))


def put(stream: str, *messages: list[dict[str, Any]]) -> None:
    """Send messages to the stream, as another producer does."""

    async def send() -> None:
        sink = open_sink(stream, "test")
        await sink.open()
        await sink.send([Outgoing(json.dumps(message).encode()) for message in messages])
        await sink.close()

    asyncio.run(send())


@with_release("nats", "kafka")
def test_equal_versions_are_equal_answers(tmp_path: Path, stream: str) -> None:
    world = World(tmp_path / "world")
    # the second host may read much later than the first on a busy machine: a request waits for it
    settings = world.settings() | {"live__stream": stream, "live__min_version_wait_ms": 20_000.0}
    with (
        serving(live__folder=tmp_path / "a", **settings) as first,
        serving(live__folder=tmp_path / "b", **settings) as second,
    ):
        (here,), (there,) = first.workers, second.workers
        # a message at a time, and many at once: the two hosts batch them as they come
        for _ in range(10):
            put(stream, world.events(3))
        put(
            stream,
            *[world.events(2) for _ in range(20)],
            [{"op": "add_edge", "src": "nobody", "dst": "n1"}],
        )
        written = here.send(world.events(5)).json()
        assert (written["accepted"], written["refused"]) == (5, [])
        assert msgspec.convert(written, Applied).accepted == 5  # the type of /openapi.json
        for worker in (here, there):
            asked = {"nodes": [*SEEDS, *list(world.nodes)[-3:]], "min_version": written["graph_version"]}
            same(worker.score("plain", **asked), world.wanted("plain", nodes=asked["nodes"]))
        answers = [
            worker.http.post(
                "/v1/models/plain/score", json={"nodes": SEEDS, "outputs": list(OUTPUTS)}
            ).json()
            for worker in (here, there)
        ]
        assert answers[0]["graph_version"] == answers[1]["graph_version"]
        assert answers[0]["graph_version"].startswith(written["graph_version"] + ".")
        assert answers[0]["outputs"] == answers[1]["outputs"]


@pytest.mark.sample(1)
def test_a_version_that_is_missing_is_refused_so_that_another_server_is_called(
    tmp_path: Path, stream: str
) -> None:
    world = World(tmp_path / "world")
    settings = {"live__stream": stream, "live__min_version_wait_ms": 50.0}
    with serving(**world.settings(), **settings) as server:
        (worker,) = server.workers
        written = worker.send(world.events(3)).json()["graph_version"]
        lineage, _, offset = written.partition("+")
        later = f"{lineage}+" + offset.replace(offset.split("-")[0], str(int(offset.split("-")[0]) + 1000))
        for version in (later, f"{'0' * 16}+1"):
            answer = worker.http.post(
                "/v1/models/plain/score", json={"nodes": SEEDS, "min_version": version}
            )
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "graph_behind"), (
                answer.text
            )
            assert "retry-after" in answer.headers
        answer = worker.http.post(SCORE, json={"nodes": SEEDS, "min_version": "newest"})
        assert answer.status_code == 400
        assert worker.score("plain", nodes=SEEDS, min_version=lineage)["graph_version"]
        # what another process wants to change on this host alone is refused
        until(lambda: worker.graph()["graph_version"].startswith(written + "."))


@pytest.mark.sample(1)
@with_release("kafka")
def test_a_new_host_starts_from_a_shared_snapshot(tmp_path: Path, stream: str) -> None:
    world = World(tmp_path / "world")
    settings = world.settings() | {
        "live__stream": stream, "live__snapshots": str(tmp_path / "shared"),
        "live__min_version_wait_ms": 20_000.0,
    }  # fmt: skip
    with serving(live__folder=tmp_path / "a", live__snapshot_bytes=1, **settings) as first:
        for _ in range(5):
            written = first.workers[0].send(world.events(4)).json()
        until(lambda: list((tmp_path / "shared").glob("*/*/complete")))
        with serving(live__folder=tmp_path / "b", **settings) as second:
            assert (tmp_path / "b" / "snapshots").is_dir()
            assert list((tmp_path / "b" / "snapshots").iterdir())
            answer = second.workers[0].score("plain", nodes=SEEDS, min_version=written["graph_version"])
            same(answer, world.wanted("plain", nodes=SEEDS))
            other = first.workers[0].score("plain", nodes=SEEDS, min_version=written["graph_version"])
            assert answer["graph_version"] == other["graph_version"]
            for name, values in answer["outputs"].items():
                np.testing.assert_array_equal(values, other["outputs"][name])
