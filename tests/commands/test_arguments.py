"""What a library says of its arguments, as somebody reads it who typed flags."""

import pytest

from hopline.commands.arguments import as_flags, flags_of
from tests.commands.typed import typed

PACKAGE = flags_of(
    [
        ["--overwrite"], ["--fanouts"], ["--task"], ["--output"], ["--head"], ["--argument"],
        ["--relation"], ["--target"], ["--check-nodes"], ["--state-dict"], ["--on-missing"],
        ["--model"],
    ]
)  # fmt: skip


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        ("it exists; pass overwrite=True", "it exists; pass --overwrite"),
        ("set output='logits' or output='probabilities'", "set --output logits or --output probabilities"),
        ("use fanouts=[-1, -1]", "use --fanouts -1,-1"),
        ("with check_nodes=64", "with --check-nodes 64"),
        ("say arguments={'w': 'edge_attr'}", "say --argument w=edge_attr"),
        ("say arguments={'w': ...}", "say --argument w=..."),
        ("name it with relations=[...]", "name it with --relation ..."),
        ("say target=(source type, destination type)", "say --target source type,destination type"),
        ("head=, a module of (h_src, h_dst)", "--head, a module of (h_src, h_dst)"),
        ('ask with on_missing "null" to get null', "ask with --on-missing null to get null"),
        ('the graph of "x" has no model "y"', 'the graph of "x" has no model "y"'),
        # what is no flag of the command is somebody else's Python
        ("apply it over the classes, softmax(dim=1)", "apply it over the classes, softmax(dim=1)"),
        ("undirected=True", "undirected=True"),
        ("--argument edge_weight=edge_attr", "--argument edge_weight=edge_attr"),
        ("my_task='x'", "my_task='x'"),
    ],
)
def test_python_arguments_become_flags(said, typed):
    assert as_flags(said, PACKAGE) == typed


def test_the_longest_name_of_an_option_is_its_flag():
    assert flags_of([["-n", "--count"], ["MODEL"]]) == {"count": "--count"}


def test_the_command_line_says_flags(tmp_path):
    (tmp_path / "edges.csv").write_text("src,dst\n1,2\n")
    words = ["graph", "build", tmp_path / "edges.csv", "--out", tmp_path / "graph"]
    assert typed(*words).exit_code == 0
    again = typed(*words)
    assert again.exit_code == 1
    assert "pass --overwrite to replace it" in again.stderr
    assert "overwrite=True" not in again.stderr


def test_a_way_out_that_the_command_lacks_is_left_out():
    said = "models/slm/1 exists; choose another version, or pass overwrite=True"
    assert as_flags(said, {}) == "models/slm/1 exists; choose another version"
    assert as_flags(said, {"overwrite": "--overwrite"}).endswith(", or pass --overwrite")
