"""Hashes tell apart what answers differently, and nothing else."""

from __future__ import annotations

import msgspec
import pytest

from hopline.answering.hashes import graph_model_hashes
from hopline.artifact import Head, ModelSpec, Stage, StageInput
from hopline_tabular.spec import Column, TabularSpec, model_hashes

NODE = Stage(
    8, "layers/1.node.onnx", (StageInput("r", "reduce", edge_type="node__to__node", reduce="mean"),)
)
GRAPH_MODEL = ModelSpec(
    name="risk",
    version="1",
    task="multiclass",
    num_layers=1,
    graph_schema={"node_types": {}, "edge_types": {}},
    fanouts={"node__to__node": (5,)},
    head=Head("node", 2, file="head.onnx"),
    levels=({"node": Stage(16)}, {"node": NODE}),
    files={"head.onnx": "a", "layers/1.node.onnx": "b"},
)
TABULAR_MODEL = TabularSpec(
    name="risk",
    version="1",
    task="binary",
    columns=(Column("amount", "float", default=0.0),),
    outputs=("label",),
    output_dim=2,
    files={"model.onnx": "a"},
)


def with_input(**changes: object) -> ModelSpec:
    """The graph model, with another input of its layer."""
    stage = msgspec.structs.replace(NODE, inputs=(msgspec.structs.replace(NODE.inputs[0], **changes),))
    return msgspec.structs.replace(GRAPH_MODEL, levels=(GRAPH_MODEL.levels[0], {"node": stage}))


@pytest.mark.parametrize(
    "other",
    [
        with_input(reduce="max"),
        with_input(weighted=True),
        with_input(columns=(0, 8)),
        msgspec.structs.replace(GRAPH_MODEL, head=Head("node", 2, file="head.onnx", embedding=(0, 4))),
        msgspec.structs.replace(GRAPH_MODEL, fanouts={"node__to__node": (6,)}),
        msgspec.structs.replace(GRAPH_MODEL, files={**GRAPH_MODEL.files, "head.onnx": "c"}),
    ],
    ids=["reduction", "weights", "columns", "embedding", "fanouts", "files"],
)
def test_graph_models_that_compute_differently_have_different_artifact_hashes(other: ModelSpec) -> None:
    """Models with equal files once had equal hashes."""
    assert graph_model_hashes(other)["artifact_hash"] != graph_model_hashes(GRAPH_MODEL)["artifact_hash"]


def test_the_default_of_a_column_is_part_of_a_tabular_model() -> None:
    other = msgspec.structs.replace(TABULAR_MODEL, columns=(Column("amount", "float", default=1.0),))
    assert model_hashes(other)["artifact_hash"] != model_hashes(TABULAR_MODEL)["artifact_hash"]


def test_names_and_measurements_change_no_hash() -> None:
    about = {"name": "other", "version": "9", "parity": {"max_abs_diff": 0.5}, "producer": {"numpy": "9"}}
    assert graph_model_hashes(msgspec.structs.replace(GRAPH_MODEL, **about)) == graph_model_hashes(
        GRAPH_MODEL
    )
    assert model_hashes(msgspec.structs.replace(TABULAR_MODEL, **about)) == model_hashes(TABULAR_MODEL)
