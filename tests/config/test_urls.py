import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.config.urls import shown
from hopline.errors import ConfigError
from hopline_brokers.address import Address
from hopline_stores.redis.url import RedisUrl


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://me:secret@h:1/0?prefix=a", "redis://…@h:1/0"),
        ("s3://bucket/folder/", "s3://bucket/folder"),
        ("redsi://", "redsi://"),
        ("https://me:se/cr@et@h/x", "https://…@h/x"),
        ("me:secret@h", "…@h"),
        ("out.parquet", "out.parquet"),
        ("models@2", "models@2"),
    ],
)
def test_a_login_is_not_shown(url, text):
    assert shown(url) == text


def read_redis(url):
    return RedisUrl.parse(url, "features.store").password


def read_broker(url):
    return Address.parse(url, "queues.requests", ["redis"], 6379).options.get("password")


@given(
    st.text(st.sampled_from("ab:/?#@%[]2F,"), min_size=1, max_size=8),
    st.sampled_from((read_redis, read_broker)),
)
def test_a_password_is_read_whole_or_refused_and_never_shown(text, read):
    """However people write it: no part of it becomes a host, a database or an option."""
    password = f"zz{text}zword"
    said = ""
    try:
        found = read(f"redis://me:{password}@127.0.0.1:6379")
    except ConfigError as error:
        found, said = password, str(error)
    assert found is not None
    assert found.startswith("zz")
    assert found.endswith("zword")
    assert "zword" not in said
