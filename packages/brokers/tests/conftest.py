from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("hopline.testing.brokers")

from hopline.testing.broker_servers import (  # noqa: E402
    BrokerServer,
    KafkaServer,
    NatsServer,
    RedisServer,
    broker_server,
)


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
