"""Feature stores by URL scheme; only the requested class is imported."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import numpy as np

from hopline.config.urls import find_by_scheme
from hopline.doors import Door
from hopline.features.base import FeatureGroup, FeatureStore
from hopline.features.rows import refuse_not_finite
from hopline.types import ExternalIds

#: The default setting of a store's URL.
SETTING = "features.store"

#: Schemes of a Redis, and what installs its stores.
REDIS = dict.fromkeys(
    (f"{name}{kind}" for kind in ("", "+cluster") for name in ("redis", "rediss", "valkey", "valkeys")),
    "'hopline[redis]'",
)
#: Schemes of stores in which `hopline batch` can publish. Each is also a scheme of a batch sink.
PUBLISHING = REDIS | {"dynamodb": "'hopline[dynamodb]'"}

#: scheme -> a class that is called with the URL and the name of its setting. `published+` is before the
#: scheme of a store whose current generation of published rows is read.
DOOR = Door(
    "hopline.feature_stores",
    {
        "memory": "hopline.features.memory:MemoryStore",
    },
    {
        "parquet": "'hopline[redis]'",
        **PUBLISHING,
        **{f"published+{scheme}": install for scheme, install in PUBLISHING.items()},
        "feast": "'hopline[feast]'",
        "pyg": "'hopline[train]'",
    },
)


def open_store(url: str, setting: str = SETTING) -> FeatureStore:
    """Return the store for a URL. It connects in `open()`.

    Args:
        url: "memory:", "redis://host:6379/0" …
        setting: setting of the URL, for errors.

    Raises:
        ConfigError: an unknown scheme, one whose package is missing, or a URL that the store cannot use.
    """
    made = find_by_scheme(DOOR, url, setting, "the URL of a feature store")
    return cast(FeatureStore, made(url, setting))


@asynccontextmanager
async def opened_store(url: str, setting: str) -> AsyncIterator[FeatureStore]:
    """As `open_store`, opened; it is closed at the end."""
    store = open_store(url, setting)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


async def write_rows(store: FeatureStore, group: FeatureGroup, ids: ExternalIds, values: Any) -> None:
    """Write columns by name, or an array of numbers, which must be finite; raises as the store."""
    if group.types:
        await store.write_columns(group, ids, values)
        return
    rows = np.asarray(values, np.float32)
    refuse_not_finite(group, ids, rows)
    await store.write(group, ids, rows)
