"""`hopline package` on the command line."""

import json
import random
import sys

import pytest
import torch
from torch_geometric.nn import models
from typer.testing import CliRunner

from hopline import cli
from hopline.artifact import read_spec
from hopline.commands.model_reference import load_module, parse_init
from hopline.commands.package import parse_fanouts, parse_windows
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


def test_explains_each_layer_and_what_a_request_costs_here(files):
    words = (
        *("--model", f"{files}/fraud_model.py:build", "--graph", files / "graph"),
        *("--repository", files / "models", "--name", "fraud", "--fanouts", "4", "--task", "multiclass"),
    )
    done = run(*words, "--explain")
    assert done.exit_code == 0, done.output
    assert "1.node: reduce: convs.0.aggr_module (MeanAggregation)" in done.stdout
    assert "measured on this" in done.stdout  # a narrow terminal breaks the line
    again = json.loads(run(*words, "--overwrite", "--explain", "--json").stdout)
    raw, layer = again["stages"]
    assert (raw["rows"], raw["us"], raw["advice"]) == (0, 0, "")
    assert layer["rows"] == 1
    assert 0 < layer["edges"] <= 4
    assert layer["us"] > 0
    assert "smaller fanout" in layer["advice"]
    assert again["spec"]["parity"]["max_abs_diff"] < 1e-4


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


CLASSES = """
import torch
from torch_geometric.nn import SAGEConv
from layers_beside_it import Head

class Net(torch.nn.Module):
    def __init__(self, in_channels, hidden=8, *, names=("a",), dropout=None, label=""):
        super().__init__()
        assert isinstance(names, (list, tuple)), names
        assert dropout is None or isinstance(dropout, float)
        self.label = label
        self.conv, self.head = SAGEConv(in_channels, hidden), Head(hidden, len(names))

    def forward(self, x, edge_index):
        return self.head(self.conv(x, edge_index))

def build(graph, hidden):
    return Net(graph.schema.node_types["node"].feature_dim, hidden)

def anything(**options):
    return Net(6, **options)

class Table:
    pass

ready = Net(6)
"""


@pytest.fixture
def classes(files, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # the folder of a model's file is added
    (files / "layers_beside_it.py").write_text("from torch.nn import Linear as Head\n")
    (files / "classes.py").write_text(CLASSES)
    return files


def test_a_class_gets_its_arguments(classes):
    graph = homogeneous()
    texts = ["in_channels=6", "hidden=16", 'names=["x", "y"]', "dropout=0.5", "label=none of these"]
    net = load_module(f"{classes}/classes.py:Net", graph, parse_init(texts))
    assert net.conv.in_channels == 6
    assert net.head.weight.shape == (2, 16)
    assert net.label == "none of these"
    assert load_module(f"{classes}/classes.py:build", graph, {"hidden": 4}).conv.in_channels == 6
    assert load_module(f"{classes}/classes.py:anything", graph, {"hidden": 5}).head.weight.shape == (1, 5)


def test_values_are_json_or_python_or_text():
    found = parse_init(["a=true", "b=None", "c=1e-3", "d=(1, 2)", "e=relu", 'f="7"', "g=x=y", "h="])
    assert found == {
        "a": True, "b": None, "c": 0.001, "d": (1, 2), "e": "relu", "f": "7", "g": "x=y", "h": "",
    }  # fmt: skip
    for bad in (["hidden"], ["=3"], ["a b=3"], ["a=1", "a=2"]):
        with pytest.raises(PackagingError, match="--init"):
            parse_init(bad)


@pytest.mark.parametrize(
    ("reference", "arguments", "message"),
    [
        (
            "classes.py:Net",
            {},
            r"Net\(in_channels, hidden=8, .*\) needs in_channels; pass --init in_channels=V",
        ),
        ("classes.py:build", {}, r"build\(graph, hidden\) needs hidden; pass --init hidden=VALUE"),
        ("classes.py:Net", {"hiden": 3}, r"--init hiden=…: Net\(in_channels, .* did you mean 'hidden'"),
        (
            "classes.py:Net",
            {"in_channels": "six"},
            r"Net\(in_channels='six'\) failed: \w+Error: .*line \d+ of",
        ),
        ("classes.py:ready", {"hidden": 3}, "is a Net already and takes no arguments"),
        ("classes.py:Table", {}, "is Table, not a torch.nn.Module"),
        ("classes.py:Nett", {}, "has no 'Nett'; did you mean 'Net'"),
        ("parses.py:Net", {}, r'parses\.py: SystemExit.*if __name__ == "__main__"'),
        ("classes.py", {}, r"also name the class or function: .*classes\.py:NAME"),
        ("weights.pt", {}, "pass a file of weights as --state-dict"),
        ("broken.py:Net", {}, r"broken\.py: ModuleNotFoundError: No module named 'no_such'.*line 1 of"),
        ("typo.py:Net", {}, r"typo\.py: SyntaxError"),
        ("relative.py:Net", {}, r"relative import.*PACKAGE\.MODULE:NAME"),
    ],
)
def test_models_that_cannot_be_made_are_explained(classes, reference, arguments, message):
    (classes / "broken.py").write_text("import no_such\n")
    (classes / "parses.py").write_text("raise SystemExit(2)\n")
    (classes / "typo.py").write_text("class Net(:\n")
    (classes / "relative.py").write_text("from .layers import Net\n")
    with pytest.raises(PackagingError, match=message):
        load_module(f"{classes}/{reference}", homogeneous(), arguments)


def test_a_model_file_does_not_replace_a_module_of_its_name(files):
    (files / "random.py").write_text(MODEL)
    assert load_module(f"{files}/random.py:build", homogeneous()).in_channels == 6
    assert sys.modules["random"] is random


def test_a_checkpoint_is_packaged_and_its_part_is_reported(classes):
    net = load_module(f"{classes}/classes.py:Net", homogeneous(), {"in_channels": 6})
    state = {f"model.{name}": value for name, value in net.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, classes / "last.ckpt")
    place = ("--graph", classes / "graph", "--repository", classes / "models", "--name", "net")
    about = ("--model", f"{classes}/classes.py:Net", "--fanouts", "5", "--task", "binary")
    init = ("--init", "in_channels=6")
    done = run(*about, *init, *place, "--state-dict", classes / "last.ckpt")
    assert done.exit_code == 0, done.output
    assert "note: weights under 'state_dict/model'" in done.stderr
    done = run(*about, *init, *place, "--version", "2")
    assert done.exit_code == 0, done.output
    assert "note: no --state-dict: the weights are those of" in done.stderr
    for option in (("--state-dict-key", "model"), ("--unsafe-pickle",)):
        done = run(*about, *init, *place, "--version", "3", *option)
        assert f"{option[0]} needs --state-dict" in str(done.exception)


def test_fanouts_are_one_list_or_one_for_each_edge_type():
    assert parse_fanouts(["10,-1"]) == [10, -1]
    assert parse_fanouts(["a__r__b=10,5", "b__r__a=3,2"]) == {"a__r__b": [10, 5], "b__r__a": [3, 2]}
    for bad in (["10", "5"], ["10,x"], ["a=1", "5"]):
        with pytest.raises(PackagingError, match="--fanouts"):
            parse_fanouts(bad)


@pytest.mark.parametrize(
    ("option", "choices"),
    [("--task", "multiclass, binary"), ("--device", "cpu, cuda"), ("--sampling", "uniform, recent")],
)
def test_a_choice_that_is_none_lists_what_there_is(files, option, choices):
    done = run(
        *("--model", f"{files}/fraud_model.py:ready", "--graph", files / "graph", "--repository", files),
        *("--name", "m", "--fanouts", "1", option, "classification"),
        *(() if option == "--task" else ("--task", "binary")),
    )
    assert isinstance(done.exception, PackagingError)
    assert f"{option}: 'classification' is not one of {choices}" in str(done.exception)


def test_windows_are_read():
    assert parse_windows(["a__r__b=30d", "b__r__a=7,none"]) == {"a__r__b": "30d", "b__r__a": [7, None]}
    assert parse_windows(["a__r__b=30"]) == {"a__r__b": 30}
    with pytest.raises(PackagingError, match="--window 30d: write NAME=VALUE, such as account__pays"):
        parse_windows(["30d"])
