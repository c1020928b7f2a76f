"""Kinds of models: which one a folder has, and what is said where no installed package has it."""

import importlib.metadata
import re

import pytest

from hopline.answering.unit import Unit
from hopline.config.reader import load_config
from hopline.errors import ArtifactError
from hopline.models.kinds import MODEL_KINDS, ModelKind, find_kind, kind_of, nesting
from hopline.models.loader import Loader
from hopline.observe.metrics import Metrics


@pytest.fixture
def alone(monkeypatch):
    """An environment with the server's package alone."""
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])


def version(root, name, file, text):
    folder = root / name / "1"
    folder.mkdir(parents=True)
    (folder / file).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("file", "text", "kind"),
    [
        ("model.json", "{}", "graph"),
        ("model.json", '{"kind": "tabular"}', "tabular"),
        ("model.json", '{"kind": "forest"}', "forest"),
        ("model.json", "not JSON", "graph"),
        ("pipeline.toml", "", "pipeline"),
        ("weights.bin", "", "graph"),
    ],
)
def test_the_kind_is_in_the_folder(tmp_path, file, text, kind):
    assert kind_of(version(tmp_path, "m", file, text)) == kind


def test_a_model_json_decides_though_another_marker_lies_beside_it(tmp_path):
    folder = version(tmp_path, "m", "model.json", '{"kind": "tabular"}')
    (folder / "pipeline.toml").write_text("")
    assert kind_of(folder) == "tabular"


def test_a_package_that_names_something_else_than_a_kind_is_named(tmp_path, monkeypatch):
    class Point:
        name = "forest"

        def load(self):
            return ModelKind

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [Point()])
    with pytest.raises(
        ArtifactError, match=r"m/1: the package of kind 'forest' names .*ModelKind.*, not a"
    ):
        find_kind(version(tmp_path, "m", "model.json", '{"kind": "forest"}'))


def test_every_kind_of_this_environment_is_one():
    assert {"graph", "tabular", "generative", "pipeline"} <= set(MODEL_KINDS.names())
    assert all(isinstance(MODEL_KINDS.find(name), ModelKind) for name in MODEL_KINDS.names())


@pytest.mark.parametrize(("name", "extra"), MODEL_KINDS.packages.items())
async def test_a_kind_whose_package_is_missing_names_the_extra(tmp_path, alone, name, extra):
    text = {"pipeline": ("pipeline.toml", "")}.get(name, ("model.json", f'{{"kind": "{name}"}}'))
    folder = version(tmp_path, "m", *text)
    message = f"m/1 is a {name} model, .*: pip install {re.escape(extra)}$"
    with pytest.raises(ArtifactError, match=message):
        find_kind(folder)
    loader = Loader(load_config(overrides={"models.repository": tmp_path}), Metrics(), [], lambda *_: None)
    with pytest.raises(ArtifactError, match=message):
        await loader.load("m", Unit("1"))
    assert loader.nesting("m") == 0
    assert not loader.reads_graph("m", "1")
    await loader.close()


def test_an_unknown_kind_comes_with_the_known_ones(tmp_path):
    folder = version(tmp_path, "m", "model.json", '{"kind": "tabula"}')
    with pytest.raises(ArtifactError, match=r"m/1: kind 'tabula' .*mean 'tabular'.*graph, tabular"):
        find_kind(folder)


async def test_a_kind_of_another_package_serves(tmp_path, monkeypatch):
    class Forest(ModelKind):
        async def load(self, load, folder, limits, tools):
            from tests.fake_version import FakeVersion

            load.served = FakeVersion(load.model, "tabular", {"x": "FP32"}, {"y": ("FP32", ())}, dict)

        def describe(self, folder, describe):
            raise NotImplementedError

    class Point:
        name = "forest"

        def load(self):
            return Forest()

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [Point()])
    version(tmp_path, "m", "model.json", '{"kind": "forest"}')
    loader = Loader(load_config(overrides={"models.repository": tmp_path}), Metrics(), [], lambda *_: None)
    load = await loader.load("m", Unit("1"))
    assert load.served.name == "m"
    await load.give_back()
    await loader.close()


def test_depth_counts_the_longest_way_and_ends_at_circles(tmp_path, monkeypatch):
    below = {"a": ["b", "c"], "b": ["c"], "c": [], "round": ["round"], "leaf": None}

    class Over(ModelKind):
        async def load(self, load, folder, limits, tools):
            raise NotImplementedError

        def describe(self, folder, describe):
            raise NotImplementedError

        def models_below(self, folder):
            return below[folder.parent.name]

    monkeypatch.setattr("hopline.models.kinds.find_kind", lambda folder: Over())

    def folder_of(name):
        return tmp_path / name / "1" if name in below else None

    found = {name: nesting(name, folder_of) for name in (*below, "absent")}
    assert found == {"a": 3, "b": 2, "c": 1, "round": 1, "leaf": 0, "absent": 0}
