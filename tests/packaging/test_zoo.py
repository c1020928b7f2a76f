"""The zoo of PyG's convolutions and models (benchmarks/zoo.py) has them all."""

from pathlib import Path

import pytest
import torch

from benchmarks.zoo import run, undescribed
from benchmarks.zoo_phases import convs, models
from benchmarks.zoo_phases.entry import describe, draw_weights
from benchmarks.zoo_phases.graphs import zoo_graph
from benchmarks.zoo_phases.verdict import TOLERANCE, ask_module

ENTRIES = {
    describe(name, entry): entry
    for table in (convs.TABLE, models.TABLE)
    for name, entries in table.items()
    for entry in entries
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("zoo")


def test_every_class_of_pyg_has_an_entry_or_a_reason():
    missing, _ = undescribed()
    assert missing == []


def test_names_of_entries_distinguish_them():
    tables = [*convs.TABLE.values(), *models.TABLE.values()]
    assert len(ENTRIES) == sum(len(entries) for entries in tables)


@pytest.mark.sample(30)
@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_answers_one_row_for_each_node_and_reads_its_neighbours(name, folder):
    entry = ENTRIES[name]
    place = zoo_graph(entry.graph, folder)
    torch.manual_seed(0)
    module = draw_weights(entry.make(), 0)
    arguments = place.arguments(module)
    answer = ask_module(module, arguments)
    assert answer.shape[0] == place.num_nodes[entry.target]
    assert answer.isfinite().all()
    fewer = {key: _half(value) if "edge" in key else value for key, value in arguments.items()}
    assert (ask_module(module, fewer) - answer).abs().max() > TOLERANCE


def _half(value):
    if isinstance(value, dict):
        return {key: _half(each) for key, each in value.items()}
    return value[..., ::2] if value.shape[0] == 2 else value[::2]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("only", "outcome", "fanouts"),
    [
        ("TAGConv not normalized", "split", 4),
        ("ARMAConv weight", "split", 2),
        ("SAGEConv median", "split", 2),
        ("DirGNNConv GCNConv", "split", 2),
        ("ChebConv both", "split", 5),
        ("LINKX", "split", 1),
        ("HANConv", "split", 2),
        ("ChebConv both_weight", "split", 3),
        ("EdgeCNN LayerNorm", "split", 2),
    ],
)
def test_an_entry_is_served_with_the_fanouts_and_options_that_its_refusal_names(
    only, outcome, fanouts, tmp_path
):
    (row,) = run(False, only, tmp_path)
    assert (row["outcome"], row["fanouts"]) == (outcome, fanouts), row["why"]
