"""`hopline batch` as people type it."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from hopline.cli import build_app
from hopline.errors import ConfigError, HoplineError, ModelNotFound
from tests.engine import zoo
from tests.jobs.batch.conftest import online


@pytest.fixture
def hopline(cases, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = cases["sage"]

    def run(*words, model="sage"):
        places = ["--repository", str(case.folder.parents[1]), "--graph", str(case.graph.path)]
        arguments = ["batch", "--model", model, *places, *words]
        result = CliRunner().invoke(build_app(arguments), arguments)
        if isinstance(result.exception, HoplineError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return run


def test_a_run_says_what_it_did_and_the_table_is_the_online_answers(hopline, cases, tmp_path):
    said = hopline("--to", "npy:scores")
    assert "rows" in said
    assert "Published: npy:scores" in said
    expected = online(cases["sage"].folder, cases["sage"].graph, ("label", "probabilities"))
    for name, values in expected.items():
        assert (np.load(tmp_path / "scores" / f"{name}.npy") == values).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scores"]


def test_the_report_comes_as_json(hopline):
    report = json.loads(hopline("--to", "npy:scores", "--json", "--outputs", "label, logits", "--exact"))
    assert report["outputs"] == ["label", "logits"]
    assert report["exact"]
    assert report["rows"] == zoo.N
    assert len(report["levels"]) == 3


def test_kept_states_serve_the_next_run(hopline):
    said = hopline("--to", "npy:a", "--keep")
    assert "a.run" in said
    report = json.loads(hopline("--to", "npy:b", "--since", "a.run", "--json"))
    assert report["recomputed"] == 0


def test_nodes_of_a_file(hopline, tmp_path):
    (tmp_path / "ids.txt").write_text("n5\nn2\n")
    report = json.loads(hopline("--to", "npy:scores", "--nodes", "ids.txt", "--json"))
    assert report["rows"] == 2


def test_features_in_a_store_are_refused_with_the_way_out(hopline):
    with pytest.raises(ConfigError, match="reads features from the graph folder"):
        hopline("--to", "npy:scores", "--set", "features.store=redis://localhost")


def test_a_size_that_is_none_is_refused(hopline):
    with pytest.raises(ConfigError, match="--memory: 'lots' is not a size"):
        hopline("--to", "npy:scores", "--memory", "lots")


def test_a_model_that_is_not_there_is_named_with_those_that_are(hopline):
    with pytest.raises(ModelNotFound, match="sage"):
        hopline("--to", "npy:scores", model="sage2")
