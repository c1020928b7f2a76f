"""Feature stores by URL scheme; only the requested class is imported."""

from __future__ import annotations

from typing import cast

from hopline.config.urls import find_by_scheme
from hopline.doors import Door
from hopline.features.base import FeatureStore

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
    {"memory": "hopline.features.memory:MemoryStore"},
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
