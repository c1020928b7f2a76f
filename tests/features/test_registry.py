"""From URLs to stores."""

import importlib
import importlib.metadata

import pytest

from hopline.errors import ConfigError
from hopline.features.memory import MemoryStore
from hopline.features.published import PublishingStore
from hopline.features.redis import RedisClusterStore, RedisStore
from hopline.features.registry import PUBLISHED, PUBLISHING, STORES, open_store
from hopline.jobs.batch.registry import SINKS


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("memory:", MemoryStore),
        ("redis://h", RedisStore),
        ("REDISS://h", RedisStore),
        ("valkey://h", RedisStore),
        ("redis+cluster://h", RedisClusterStore),
        ("rediss+cluster://h", RedisClusterStore),
    ],
)
def test_the_scheme_says_the_class_and_nothing_is_connected(url, kind):
    assert type(open_store(url)) is kind


@pytest.mark.parametrize("scheme", sorted(STORES))
def test_results_can_be_published_where_the_class_can_publish(scheme):
    module, _, name = STORES[scheme].partition(":")
    publishes = issubclass(getattr(importlib.import_module(module), name), PublishingStore)
    assert (scheme in PUBLISHING) == publishes
    assert (f"{PUBLISHED}{scheme}" in STORES) == publishes
    assert (scheme in SINKS) == (publishes or scheme == "parquet")  # a sink of files, not of rows


@pytest.mark.parametrize("url", ["", "redis", "http://h", "rdis://:secret@h", "C:\\x"])
def test_an_unknown_scheme_comes_with_the_known_ones_and_without_the_password(url):
    with pytest.raises(
        ConfigError, match=r"^features\.store: .* is not the URL of a feature store"
    ) as raised:
        open_store(url)
    assert all(f"{scheme}:" in str(raised.value) for scheme in STORES)
    assert "secret" not in str(raised.value)


def test_packages_bring_schemes_of_their_own(monkeypatch):
    point = importlib.metadata.EntryPoint(
        "mine", "hopline.features.memory:MemoryStore", "hopline.feature_stores"
    )
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point])
    assert type(open_store("mine:")) is MemoryStore
    with pytest.raises(ConfigError, match="mine:"):
        open_store("your:")
