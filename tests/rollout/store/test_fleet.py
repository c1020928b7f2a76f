"""The store that the settings name."""

import pytest

from hopline.config.reader import load_config
from hopline.errors import ConfigError
from hopline.rollout.store.fleet import configured_fleet
from hopline.rollout.store.folder import FolderStore
from hopline_stores.redis.state import RedisStateStore


def configured(tmp_path, state):
    settings = {"models.repository": str(tmp_path)}
    if state is not None:
        settings["models.state"] = state
    return configured_fleet(load_config(overrides=settings))[0].store


@pytest.mark.parametrize("scheme", ["redis", "rediss", "valkey", "REDIS"])
def test_a_url_names_a_redis(tmp_path, scheme):
    store = configured(tmp_path, f"{scheme}://state.internal/0?prefix=prod:")
    assert isinstance(store, RedisStateStore)
    assert "state.internal:6379 (prefix 'prod:')" in store.address


@pytest.mark.parametrize("state", [None, "elsewhere"])
def test_a_path_names_a_folder(tmp_path, state):
    path = None if state is None else str(tmp_path / state)
    store = configured(tmp_path, path)
    assert isinstance(store, FolderStore)
    assert store.address == str(tmp_path / (state or ".hopline"))


@pytest.mark.parametrize("state", ["nats://a/kv", "s3://bucket/state", "redis+cluster://a,b"])
def test_another_url_is_refused(tmp_path, state):
    with pytest.raises(ConfigError, match=r"^models\.state: "):
        configured(tmp_path, state)


def test_a_store_whose_package_is_missing_names_what_installs_it(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    with pytest.raises(ConfigError, match=r"^models\.state: redis:// .*: pip install 'hopline\[fleet\]'$"):
        configured(tmp_path, "redis://h/0")
