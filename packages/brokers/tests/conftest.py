from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("hopline_brokers.testing.suite")

from hopline_brokers.testing.servers import BrokerServer  # noqa: E402
from packages.brokers.tests.servers import (  # noqa: E402
    KafkaServer,
    NatsServer,
    RedisServer,
    broker_server,
)


@pytest.fixture(scope="module", params=[RedisServer, NatsServer, KafkaServer], ids=lambda kind: kind.scheme)
def any_broker(request: pytest.FixtureRequest) -> Iterator[BrokerServer]:
    with broker_server(request.param) as server:
        yield server


@pytest.fixture(scope="module")
def redis() -> Iterator[BrokerServer]:
    with broker_server(RedisServer) as server:
        yield server


@pytest.fixture(scope="module")
def kafka_server() -> Iterator[BrokerServer]:
    with broker_server(KafkaServer) as server:
        yield server


@pytest.fixture(scope="module")
def redis_server() -> Iterator[BrokerServer]:
    with broker_server(RedisServer) as server:
        yield server


@pytest.fixture(scope="module")
def nats_server() -> Iterator[BrokerServer]:
    with broker_server(NatsServer) as server:
        yield server
