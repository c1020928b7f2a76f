"""How far a live graph follows changes: as far as the models look that will be served."""

import logging

import msgspec
import numpy as np
import pytest

from hopline.artifact import Head, ModelSpec, Stage, StageInput, write_spec
from hopline.config.reader import load_config
from hopline.engine.model import StateCachePlan
from hopline.live.orders import levels_of, writer_orders
from tests.engine import zoo
from tests.engine.test_live import Live

SPEC = ModelSpec("m", "1", "multiclass", 2, {}, {}, Head("node", 3))


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return zoo.build(tmp_path_factory.mktemp("repository"))


def put(repository, version, spec):
    folder = repository / "m" / version
    (folder / "layers").mkdir(parents=True)
    (folder / "layers" / "0.node.onnx").touch()
    write_spec(folder, msgspec.structs.replace(spec, version=version))


def test_the_deepest_model_of_the_repository_counts(tmp_path):
    assert levels_of(tmp_path) == 4  # nothing there yet
    put(tmp_path, "1", msgspec.structs.replace(SPEC, num_layers=1))
    assert levels_of(tmp_path) == 2
    put(tmp_path, "2", SPEC)
    assert levels_of(tmp_path) == 3
    (tmp_path / "m" / "3").mkdir()
    (tmp_path / "m" / "3" / "model.json").write_text("{")
    assert levels_of(tmp_path) == 3


def test_a_student_that_sees_structure_looks_one_hop_far(tmp_path):
    stage = Stage(8, "layers/0.node.onnx", (StageInput("structure", "structure"),), structure="structure")
    put(tmp_path, "1", msgspec.structs.replace(SPEC, num_layers=0, levels=({"node": stage},)))
    assert levels_of(tmp_path) == 2


@pytest.mark.parametrize("repository", [None, "s3://bucket/models"])
def test_where_no_model_can_be_looked_at_there_is_room_for_three_layers(repository):
    assert levels_of(repository) == 4


def test_a_number_in_the_settings_holds(tmp_path):
    put(tmp_path, "1", SPEC)
    told = {"graph.path": tmp_path, "models.repository": tmp_path}
    assert writer_orders(load_config(env={}, overrides=told), "test")["num_levels"] == 3
    assert (
        writer_orders(load_config(env={}, overrides=told | {"live.levels": 7}), "test")["num_levels"] == 7
    )


def test_a_model_that_looks_too_far_is_answered_without_state_caches_and_that_is_logged(cases, caplog):
    live = Live(cases["sage"], 1, num_levels=2)
    with caplog.at_level(logging.WARNING):
        model = live.model()
    assert "reads 3 hops, and the live graph records changes over 1; set live.levels to 4" in caplog.text
    with live.view:
        assert np.isfinite(model.final_states({"node": np.arange(3)})["node"]).all()
    spec = msgspec.structs.replace(SPEC, num_layers=2)
    caplog.clear()
    StateCachePlan(spec, live.view, 0)  # no state caches are requested
    assert not caplog.text
