import pytest

pytest.register_assert_rewrite("hopline_stores.testing.feature_stores")

from tests.redis_servers import redis_server  # noqa: E402, F401
