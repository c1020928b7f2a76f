import pytest

pytest.register_assert_rewrite("hopline.testing.sinks")
