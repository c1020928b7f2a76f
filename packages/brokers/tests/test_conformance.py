"""Every broker does what the suites say, with real servers."""

import pytest

from hopline_brokers.testing.suite import BrokerFailureSuite, BrokerSuite


class TestKafka(BrokerSuite):
    @pytest.fixture
    def server(self, kafka_server):
        return kafka_server


@pytest.mark.release
class TestKafkaFailures(BrokerFailureSuite):
    @pytest.fixture
    def server(self, kafka_server):
        return kafka_server


class TestRedis(BrokerSuite):
    @pytest.fixture
    def server(self, redis_server):
        return redis_server


class TestRedisFailures(BrokerFailureSuite):
    @pytest.fixture
    def server(self, redis_server):
        return redis_server


class TestNats(BrokerSuite):
    @pytest.fixture
    def server(self, nats_server):
        return nats_server


class TestNatsFailures(BrokerFailureSuite):
    @pytest.fixture
    def server(self, nats_server):
        return nats_server
