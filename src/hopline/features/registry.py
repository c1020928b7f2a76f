"""From a store's URL to its class; only the one that is asked for is imported."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import cast

from hopline.config.setting import did_you_mean
from hopline.errors import ConfigError
from hopline.features.base import FeatureStore

#: The setting that a store's URL comes from, unless another one is named.
SETTING = "features.store"

#: Packages add their own schemes under this name: scheme = "module:attr".
ENTRY_POINTS = "hopline.feature_stores"

#: scheme -> "module:attr"; called with the URL and the name of the setting that it stands in.
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

#: What `hopline batch` publishes into these stores, whichever generation of it is current.
PUBLISHED = "published+"
_PUBLISHING = (*(name for name in STORES if name.startswith(("redis", "valkey"))), "dynamodb")
STORES |= {f"{PUBLISHED}{name}": "hopline.features.published:PublishedStore" for name in _PUBLISHING}


def open_store(url: str, setting: str = SETTING) -> FeatureStore:
    """The store that a URL names. Nothing is connected to before `open()`.

    Args:
        url: "memory:", "redis://host:6379/0" …
        setting: where the URL was written, for errors.

    Raises:
        ConfigError: an unknown scheme, or a URL that the store cannot use.
    """
    scheme = url.partition(":")[0].lower()
    target = STORES.get(scheme)
    if ":" not in url or (target is None and scheme not in (found := _plugged_in())):
        known = [*STORES, *_plugged_in()]
        raise ConfigError(
            f"{setting}: {_shown(url)} is not the URL of a feature store{did_you_mean(scheme, known)}; "
            f"it begins with one of {', '.join(f'{name}:' for name in known)}"
        )
    module, _, attribute = (target or found[scheme]).partition(":")
    store = getattr(importlib.import_module(module), attribute)
    return cast(FeatureStore, store(url, setting))


def _plugged_in() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}


def _shown(url: str) -> str:
    """The URL without what may be a password."""
    head, at, tail = url.rpartition("@")
    return repr(f"{head.partition('://')[0]}://…@{tail}" if at else url)
