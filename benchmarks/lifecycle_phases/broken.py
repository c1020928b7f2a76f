"""Versions of a tabular model that pass every check and are wrong: failing, slow, or with other answers.

Real artifacts: the ONNX file of a good version with a few nodes more, checksums and all. Only gates can
tell.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hopline.artifact import write_spec
from hopline_tabular.model import TabularModel
from hopline_tabular.spec import TabularSpec, read_tabular

Fault = Literal["none", "errors", "slow", "shifted"]
#: A request that fails has more than this in the first column of numbers; warm-up's made-up rows do not.
_FAILS_ABOVE = 2.0
_WIDTH = 256
#: Products by which the price of one is found out.
_PROBE = 100


def write(model_folder: Path, version: str, new: str, fault: Fault, added_s: float = 0.0) -> Path:
    """Write version `new` next to `version`.

    Args:
        model_folder: `<repository>/<model>`.
        added_s: what a slow version takes more for one row: products of 256 × 256 matrices for nothing, as
            many as that needs here and now.
    """
    folder = model_folder / new
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(model_folder / version, folder)
    spec = read_tabular(folder)
    file = folder / spec.file
    original = onnx.load(file)

    def spoil(work: int) -> None:
        model = onnx.ModelProto()
        model.CopyFrom(original)
        _spoil(model, fault, work)
        onnx.checker.check_model(model)
        onnx.save(model, file)

    if fault == "slow":
        usual_s = _one_row_s(folder, spec)
        spoil(_PROBE)
        each_s = max(1e-7, (_one_row_s(folder, spec) - usual_s) / _PROBE)
        spoil(round(added_s / each_s))
    elif fault != "none":
        spoil(0)
    write_spec(folder, msgspec.structs.replace(spec, version=new))
    return folder


def _one_row_s(folder: Path, spec: TabularSpec) -> float:
    """Median seconds of one row."""
    model = TabularModel(folder, spec)
    row = {column.name: ["x" if column.dtype == "string" else 1.0] for column in spec.columns}
    seconds = []
    for _ in range(300):
        began = time.perf_counter()
        model.answer([row], [1])
        seconds.append(time.perf_counter() - began)
    return median(seconds[50:])


def _spoil(model: Any, fault: Fault, work: int) -> None:
    graph = model.graph
    name = graph.output[0].name
    for node in graph.node:
        for at, output in enumerate(node.output):
            if output == name:
                node.output[at] = "answered"

    def constant(label: str, value: Any) -> str:
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), label))
        return label

    add = graph.node.append
    if fault == "shifted":
        add(helper.make_node("Sqrt", ["answered"], [name]))
        return
    if fault == "errors":
        constant("first", np.int64(0))
        constant("limit", np.float64(_FAILS_ABOVE))
        constant("far", np.int64(10**6))
        constant("nothing", np.zeros(1, np.float32))
        add(helper.make_node("Gather", ["numbers", "first"], ["amount"], axis=1))
        add(helper.make_node("Greater", ["amount", "limit"], ["is_real"]))
        add(helper.make_node("Cast", ["is_real"], ["as_number"], to=TensorProto.INT64))
        add(helper.make_node("Mul", ["as_number", "far"], ["place"]))
        # beyond the end of its table: ONNX Runtime refuses at run time
        add(helper.make_node("Gather", ["nothing", "place"], ["zeros"], axis=0))
        add(helper.make_node("Add", ["answered", "zeros"], [name]))
        return
    matrix = np.random.default_rng(0).normal(0, _WIDTH**-0.5, (_WIDTH, _WIDTH)).astype(np.float32)
    constant("matrix", matrix)
    constant("row", np.ones((1, _WIDTH), np.float32))
    constant("zero", np.float32(0))
    # The shape hangs on the call, so that nothing of it is computed in advance.
    add(helper.make_node("Shape", ["answered"], ["shape"]))
    add(helper.make_node("Cast", ["shape"], ["size"], to=TensorProto.FLOAT))
    add(helper.make_node("ReduceMin", ["size"], ["scale"], keepdims=0))
    add(helper.make_node("Mul", ["row", "scale"], ["state0"]))
    for at in range(work):
        add(helper.make_node("MatMul", [f"state{at}", "matrix"], [f"state{at + 1}"]))
    add(helper.make_node("ReduceMax", [f"state{work}"], ["top"], keepdims=0))
    add(helper.make_node("Mul", ["top", "zero"], ["nothing"]))
    add(helper.make_node("Add", ["answered", "nothing"], [name]))
