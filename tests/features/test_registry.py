"""From URLs to stores."""

import importlib.metadata
import re

import pytest

from hopline.errors import ConfigError
from hopline.features.memory import MemoryStore
from hopline.features.registry import DOOR, open_store


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("memory:", MemoryStore),
        ("MEMORY:", MemoryStore),
    ],
)
def test_the_scheme_says_the_class_and_nothing_is_connected(url, kind):
    assert type(open_store(url)) is kind


@pytest.mark.parametrize("scheme", sorted(DOOR.packages))
def test_a_store_whose_package_is_missing_names_what_installs_it(monkeypatch, scheme):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    message = f"features.store: {scheme}:// needs a package; install it with: {DOOR.how_to_install(scheme)}"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        open_store(f"{scheme}://:secret@h")


@pytest.mark.parametrize("url", ["", "redis", "http://h", "rdis://:secret@h", "C:\\x"])
def test_an_unknown_scheme_comes_with_the_known_ones_and_without_the_password(url):
    with pytest.raises(
        ConfigError, match=r"^features\.store: .* is not the URL of a feature store"
    ) as raised:
        open_store(url)
    assert all(f"{scheme}:" in str(raised.value) for scheme in DOOR.packages)
    assert "secret" not in str(raised.value)


def test_packages_bring_schemes_of_their_own(monkeypatch):
    point = importlib.metadata.EntryPoint(
        "mine", "hopline.features.memory:MemoryStore", "hopline.feature_stores"
    )
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point])
    assert type(open_store("mine:")) is MemoryStore
    with pytest.raises(ConfigError, match="mine:"):
        open_store("your:")
