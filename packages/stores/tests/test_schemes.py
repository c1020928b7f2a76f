"""From the schemes of URLs to stores and sinks."""

import pytest

from hopline.features.registry import DOOR, PUBLISHING, open_store
from hopline.jobs.batch.registry import SINKS
from hopline_stores.parquet import ParquetStore
from hopline_stores.published import PublishedStore, PublishingStore
from hopline_stores.redis.features import RedisClusterStore, RedisStore


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("parquet:///folder", ParquetStore),
        ("redis://h", RedisStore),
        ("REDISS://h", RedisStore),
        ("valkey://h", RedisStore),
        ("redis+cluster://h", RedisClusterStore),
        ("rediss+cluster://h", RedisClusterStore),
        ("valkey+cluster://h", RedisClusterStore),
        ("published+redis+cluster://h", PublishedStore),
    ],
)
def test_the_scheme_says_the_class_and_nothing_is_connected(url, kind):
    assert type(open_store(url)) is kind


@pytest.mark.parametrize(
    "scheme", sorted({name for name in DOOR.packages if "published" not in name} - {*SINKS.own, "parquet"})
)
def test_results_can_be_published_where_the_class_can_publish(scheme):
    publishes = issubclass(DOOR.find(scheme), PublishingStore)
    assert (scheme in PUBLISHING) == publishes
    assert (DOOR.find(f"published+{scheme}") is PublishedStore) == publishes
    assert (SINKS.find(scheme) is not None) == publishes
