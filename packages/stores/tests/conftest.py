import pytest

pytest.register_assert_rewrite("hopline_stores.testing.feature_stores", "hopline_stores.testing.sinks")

from packages.tabular.tests.conftest import packaged_world, world  # noqa: E402, F401
from tests.commands.conftest import root, source  # noqa: E402, F401
from tests.graph_store.conftest import cases  # noqa: E402, F401
from tests.redis_servers import own_redis, own_redis_nodes, redis_nodes, redis_server  # noqa: E402, F401
