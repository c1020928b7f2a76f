"""Feature stores by URL scheme; only the requested class is imported."""

from __future__ import annotations

from typing import cast

from hopline.config.setting import did_you_mean
from hopline.config.urls import shown
from hopline.doors import Door
from hopline.errors import ConfigError
from hopline.features.base import FeatureStore

#: The default setting of a store's URL.
SETTING = "features.store"

#: scheme -> "module:attr"; called with the URL and the name of its setting.
STORES: dict[str, str] = {
    "memory": "hopline.features.memory:MemoryStore",
    "parquet": "hopline.features.parquet:ParquetStore",
    "redis": "hopline.features.redis:RedisStore",
    "rediss": "hopline.features.redis:RedisStore",
    "valkey": "hopline.features.redis:RedisStore",
    "valkeys": "hopline.features.redis:RedisStore",
    "redis+cluster": "hopline.features.redis:RedisClusterStore",
    "rediss+cluster": "hopline.features.redis:RedisClusterStore",
    "dynamodb": "hopline.features.dynamodb:DynamoDbStore",
    "feast": "hopline.features.feast:FeastStore",
    "pyg": "hopline.features.pyg:PygStore",
}

#: Schemes of stores in which `hopline batch` can publish: their classes are `PublishingStore`s. Each is
#: also a scheme of a batch sink (`jobs/batch/registry.py`).
PUBLISHING = (
    "redis", "rediss", "valkey", "valkeys", "redis+cluster", "rediss+cluster", "dynamodb",
)  # fmt: skip
#: The current generation of rows that `hopline batch` has published in such a store.
PUBLISHED = "published+"
STORES |= {f"{PUBLISHED}{name}": "hopline.features.published:PublishedStore" for name in PUBLISHING}

DOOR = Door("hopline.feature_stores", STORES)


def open_store(url: str, setting: str = SETTING) -> FeatureStore:
    """Return the store for a URL. It connects in `open()`.

    Args:
        url: "memory:", "redis://host:6379/0" …
        setting: setting of the URL, for errors.

    Raises:
        ConfigError: an unknown scheme, or a URL that the store cannot use.
    """
    scheme = url.partition(":")[0].lower()
    store = DOOR.find(scheme) if ":" in url else None
    if store is None:
        known = DOOR.names()
        raise ConfigError(
            f"{setting}: {shown(url)!r} is not the URL of a feature store{did_you_mean(scheme, known)}; "
            f"it must begin with one of {', '.join(f'{name}:' for name in known)}"
        )
    return cast(FeatureStore, store(url, setting))
