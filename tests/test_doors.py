"""What other packages add: found by name, imported when it is requested, named where it is missing."""

import importlib
import importlib.metadata
import json

import pytest

from hopline.doors import NAMES, Door, imported


@pytest.fixture
def installed(monkeypatch):
    """Entry points of installed packages."""
    points = []

    def entry_points(*, group):
        return [point for point in points if point.group == group]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    return points


DOOR = Door("a.group", {"decimal": "decimal:Decimal"}, {"leaf": "'hopline[leaf]'"})


def point(name, target, group="a.group"):
    return importlib.metadata.EntryPoint(name, target, group)


def test_names_of_the_server_and_of_packages_are_found(installed):
    installed += [point("mine", "fractions:Fraction"), point("other", "json:loads", "another.group")]
    assert DOOR.find("decimal") is imported("decimal:Decimal")
    assert DOOR.find("mine") is imported("fractions:Fraction")
    assert DOOR.find("other") is None
    assert DOOR.names() == ["decimal", "mine"]


def test_no_package_replaces_a_name_of_the_server(installed):
    installed.append(point("decimal", "json:loads"))
    assert DOOR.find("decimal") is imported("decimal:Decimal")
    assert DOOR.names() == ["decimal"]


def test_nothing_is_imported_before_it_is_requested(installed):
    installed.append(point("broken", "no_such_module:name"))
    assert DOOR.names() == ["decimal", "broken"]
    assert DOOR.find("nothing") is None
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        DOOR.find("broken")


def test_a_known_package_that_is_missing_is_named(installed):
    assert DOOR.find("leaf") is None
    assert DOOR.how_to_install("leaf") == "pip install 'hopline[leaf]'"
    assert DOOR.how_to_install("nothing") == ""


def test_a_required_name_says_what_to_install(installed):
    installed.append(point("leaf", "no_such_module:name"))
    with pytest.raises(
        ModuleNotFoundError, match=r"leaf needs no_such_module: pip install 'hopline\[leaf\]'"
    ):
        DOOR.require("leaf")
    installed.clear()
    with pytest.raises(ModuleNotFoundError, match=r"leaf needs a package: pip install 'hopline\[leaf\]'"):
        DOOR.require("leaf")


@pytest.mark.parametrize("name", [name for name in NAMES.packages if not name.startswith("package.")])
def test_public_names_of_packages_are_found_below_hopline_or_named(installed, name):
    module, _, attribute = name.rpartition(".")
    place = importlib.import_module(f"hopline.{module}")
    with pytest.raises(ModuleNotFoundError, match=rf"{name} needs a package: pip install 'hopline\["):
        getattr(place, attribute)
    installed.append(point(name, "json:loads", "hopline.names"))
    assert getattr(place, attribute) is json.loads
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        place.nothing  # noqa: B018
