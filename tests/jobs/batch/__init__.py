import pytest

pytest.register_assert_rewrite("hopline_stores.testing.sinks")
