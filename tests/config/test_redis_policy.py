"""What the replies of a Redis tell about its memory policy."""

import pytest

from hopline.config.redis_policy import policy_in


@pytest.mark.parametrize(
    ("reply", "policy"),
    [
        (b"# Memory\r\nused_memory:1\r\nmaxmemory_policy:allkeys-lru\r\nmem_x:1\r\n", "allkeys-lru"),
        ([b"maxmemory-policy", b"noeviction"], "noeviction"),
        ({"maxmemory_policy": "noeviction"}, "noeviction"),
        (b"# Memory\r\nused_memory:1\r\n", ""),
        ({"used_memory": 1}, ""),
        ([], ""),
        ([b"maxmemory-policy", None], ""),
        (None, ""),
        (b"\xff\xfe", ""),
        (7, ""),
    ],
)
def test_replies(reply, policy):
    assert policy_in(reply) == policy
