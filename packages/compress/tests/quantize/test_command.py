"""`hopline quantize` as people type it."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from hopline.cli import build_app
from hopline.errors import BadRequest, ConfigError, HoplineError, ModelNotFound, NodeNotFound
from packages.compress.tests.quantize.conftest import logits


@pytest.fixture
def hopline(cases, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = cases["states"]
    model = tmp_path / "models" / "states"
    model.mkdir(parents=True)
    (model / "1").symlink_to(case.folder)

    def run(*words):
        places = ["--repository", "models", "--graph", str(case.graph.path)]
        arguments = ["quantize", "--model", "states", *places, "--max-drop", "5", *words]
        result = CliRunner().invoke(build_app(arguments), arguments)
        if isinstance(result.exception, HoplineError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return run


def test_it_says_what_became_of_size_layers_and_nodes(hopline, cases, tmp_path):
    (tmp_path / "ids.txt").write_text("n1\nn2\nn3\n")
    said = hopline("--new-version", "2", "--nodes", "ids.txt", "--report", "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["calibration_nodes"] == 3
    for layer in report["layers"]:
        assert layer["name"] in said
    assert "all nodes" in said
    assert "Written:" in said
    assert logits(tmp_path / "models/states/2", cases["states"].graph).shape


def test_the_report_comes_as_json(hopline, tmp_path):
    report = json.loads(hopline("--json", "--name", "small", "--to", "bfloat16", "--eval-nodes", "100"))
    assert report["version"] == "1"
    assert (report["name"], report["new_version"], report["to"]) == ("small", "1-bfloat16", "bfloat16")
    assert report["bytes_after"] < report["bytes_before"]
    assert (tmp_path / "models/small/1-bfloat16/model.json").is_file()


def test_the_newest_version_that_is_not_quantised_is_taken(hopline):
    hopline("--to", "float16", "--eval-nodes", "50")
    assert json.loads(hopline("--to", "bfloat16", "--eval-nodes", "50", "--json"))["version"] == "1"


@pytest.mark.parametrize(
    ("words", "error", "match"),
    [
        (["--to", "int4"], BadRequest, "--to 'int4': must be one of int8, float16, bfloat16"),
        (["--fallback-dtype", "int8"], BadRequest, "--fallback-dtype 'int8'"),
        (["--to", "float16", "--weight-bits", "7"], BadRequest, "--weight-bits 7: only for int8 weights"),
        (["--version", "9"], ModelNotFound, "no version '9'.*there are: 1"),
        (
            ["--set", "features.store=redis://localhost"],
            ConfigError,
            "reads features from the graph folder",
        ),
        (["--nodes", "absent.txt"], BadRequest, "absent.txt"),
        (["--nodes", "ids.npy"], BadRequest, "one dimension"),
        (["--nodes", "ids.txt"], NodeNotFound, "stranger"),
    ],
)
def test_bad_words(hopline, tmp_path, words, error, match):
    np.save(tmp_path / "ids.npy", np.zeros((2, 2)))
    (tmp_path / "ids.txt").write_text("n1\nstranger\n")
    with pytest.raises(error, match=match):
        hopline(*words)
    assert [path.name for path in (tmp_path / "models" / "states").iterdir()] == ["1"]
