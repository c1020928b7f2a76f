from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from hopline.testing.broker_servers import (
    BrokerServer,
    KafkaServer,
    NatsServer,
    RedisServer,
    broker_server,
)
from tests.servers import RunningServer, running
from tests.transports.http_rig import Host, listening


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    with running(server__max_body_bytes=1_000_000) as started:
        yield started


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with listening() as made:
        yield made


@pytest.fixture(scope="module", params=[RedisServer, NatsServer, KafkaServer], ids=lambda kind: kind.scheme)
def any_broker(request: pytest.FixtureRequest) -> Iterator[BrokerServer]:
    with broker_server(request.param) as server:
        yield server


@pytest.fixture(scope="module")
def redis() -> Iterator[BrokerServer]:
    with broker_server(RedisServer) as server:
        yield server
