"""`hopline package` on the command line."""

import pytest
import torch
from torch_geometric.nn import models
from typer.testing import CliRunner

from hopline import cli
from hopline.artifact import read_spec
from hopline.commands.package import load_module, load_weights, parse_fanouts
from hopline.errors import PackagingError
from tests.packaging.graphs import homogeneous

MODEL = """
from torch_geometric.nn.models import GraphSAGE

def build(graph):
    return GraphSAGE(graph.schema.node_types["node"].feature_dim, 8, 1, 3)

ready = GraphSAGE(6, 8, 1, 3)
number = 3
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "fraud_model.py").write_text(MODEL)
    homogeneous().save(tmp_path / "graph")
    model = models.GraphSAGE(6, 8, 1, 3)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    return tmp_path


def run(*arguments):
    words = ["package", *map(str, arguments)]
    return CliRunner().invoke(cli.build_app(words), words)


def test_packages_a_function_with_weights_and_prints_a_table(files):
    done = run(
        *("--model", f"{files}/fraud_model.py:build", "--state-dict", files / "weights.pt"),
        *("--graph", files / "graph", "--repository", files / "models", "--name", "fraud"),
        *("--fanouts", "10", "--task", "multiclass", "--classes", "a,b,c"),
    )
    assert done.exit_code == 0, done.output
    spec = read_spec(files / "models" / "fraud" / "1")
    assert spec.fanouts == {"node__to__node": (10,)}
    assert spec.classes == ("a", "b", "c")
    assert "mean node__to__node" in done.stdout
    assert "largest difference from PyG" in done.stdout


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("model", "FILE.py:NAME"),
        ("absent.py:build", "no such file"),
        ("{files}/fraud_model.py:other", "has no 'other'"),
        ("{files}/fraud_model.py:number", "not a torch.nn.Module"),
        ("no_such_module_here:build", "no module 'no_such_module_here'"),
    ],
)
def test_a_bad_model_reference_is_explained(files, reference, message):
    with pytest.raises(PackagingError, match=message):
        load_module(reference.format(files=files), homogeneous())


def test_weights_of_another_model_are_refused(files):
    with pytest.raises(PackagingError, match="size mismatch"):
        load_weights(models.GraphSAGE(6, 8, 1, 4), files / "weights.pt")
    with pytest.raises(PackagingError, match="no such file"):
        load_weights(models.GraphSAGE(6, 8, 1, 3), files / "absent.pt")


def test_weights_that_would_run_code_are_refused(files):
    torch.save({"model": models.GraphSAGE(6, 8, 1, 3)}, files / "whole.pt")
    with pytest.raises(PackagingError, match="cannot be loaded"):
        load_weights(models.GraphSAGE(6, 8, 1, 3), files / "whole.pt")


def test_fanouts_are_one_list_or_one_for_each_edge_type():
    assert parse_fanouts(["10,-1"]) == [10, -1]
    assert parse_fanouts(["a__r__b=10,5", "b__r__a=3,2"]) == {"a__r__b": [10, 5], "b__r__a": [3, 2]}
    for bad in (["10", "5"], ["10,x"], ["a=1", "5"]):
        with pytest.raises(PackagingError, match="--fanouts"):
            parse_fanouts(bad)


def test_a_bad_task_is_explained(files):
    done = run(
        *("--model", f"{files}/fraud_model.py:ready", "--graph", files / "graph", "--repository", files),
        *("--name", "m", "--fanouts", "1", "--task", "ranking"),
    )
    assert isinstance(done.exception, PackagingError)
