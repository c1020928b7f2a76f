from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("hopline.testing.feature_stores")

from tests.features.redis_servers import RedisProcess, redis_cluster, redis_process  # noqa: E402


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisProcess]:
    """A Redis that tests share; they leave it running."""
    with redis_process() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[RedisProcess]:
    """A Redis that a test may stop, kill and start again."""
    with redis_process() as server:
        yield server


@pytest.fixture(scope="session")
def redis_nodes() -> Iterator[list[RedisProcess]]:
    """The three servers of a Redis Cluster that tests share."""
    with redis_cluster() as servers:
        yield servers
