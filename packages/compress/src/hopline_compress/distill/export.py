"""Writes a trained student: as a separate model version, and as a file next to its teacher."""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from hopline.artifact import Head, ModelSpec, Stage, StageInput, sha256_of, write_spec
from hopline.engine.structure import InLists, StructureSpec
from hopline.engine.student import MODEL_FILE, SPEC_FILE, StudentSpec
from hopline.errors import PackagingError, ParityError
from hopline.files import publish_file
from hopline.graph import Graph
from hopline.packaging.export import OPSET
from hopline.packaging.folder import new_version
from hopline.runtimes.onnx import session
from hopline.types import FloatArray
from hopline_compress.distill.train import Student

#: Rows on which written files are compared, and the tolerance.
_CHECKED, _TOLERANCE = 512, 1e-4
#: IR version of opset 18.
_IR_VERSION = 8

#: Weight float32 [out, in] and bias [out].
Layer = tuple[FloatArray, FloatArray]


@dataclass(frozen=True)
class StructureRows:
    """The data of the graph that a student reads.

    Attributes:
        rows: float32 [N, S]. base: float32 [d, S], the matrix that multiplies features to get the rows that
            the diffusion begins with.
        restart: of the diffusion.
    """

    rows: FloatArray
    base: FloatArray
    restart: float


class Layers:
    """A student as plain layers: normalisation folded into them, and the outputs of its teacher's task.

    Attributes:
        hidden: (weight float32 [out, in], bias [out]) of each hidden layer, each followed by a relu.
        out: of the last one, to the logits.
    """

    def __init__(self, student: Student, task: str) -> None:
        self.hidden = [
            _folded(linear, norm) for linear, norm in zip(student.hidden, student.norms, strict=True)
        ]
        weight, bias = _arrays(student.out.weight), _arrays(student.out.bias)
        if task == "binary":
            # Logits of no and yes as one logit: a sigmoid of their difference is the softmax of both.
            weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
        self.out: Layer = (weight, bias)

    @property
    def num_states(self) -> int:
        """Columns of the last hidden layer; of the input if there is none."""
        return int(self.out[0].shape[1])

    @property
    def output_dim(self) -> int:
        """Columns of the logits."""
        return int(self.out[0].shape[0])


def _arrays(tensor: Tensor) -> FloatArray:
    found: FloatArray = tensor.detach().numpy().astype(np.float32)
    return found


def _folded(linear: nn.Module, norm: nn.Module) -> Layer:
    """One layer that is equal to a linear layer followed by batch normalisation."""
    assert isinstance(linear, nn.Linear)
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    return (
        _arrays(linear.weight * scale[:, None]),
        _arrays((linear.bias - norm.running_mean) * scale + norm.bias),
    )


def write_layers(
    path: Path, layers: Sequence[Layer], names: tuple[str, str], *, last_relu: bool, width: int
) -> None:
    """Write layers as ONNX, a relu after each but the last.

    Args:
        names: of the input float32 [n, width] and of the output.
        last_relu: add one after the last as well.
    """
    value, output = names
    nodes, weights = [], []
    for number, (weight, bias) in enumerate(layers):
        is_last = number == len(layers) - 1
        has_relu = last_relu or not is_last
        made = output if is_last and not has_relu else f"linear.{number}"
        weights += [
            numpy_helper.from_array(np.ascontiguousarray(weight), f"weight.{number}"),
            numpy_helper.from_array(np.ascontiguousarray(bias), f"bias.{number}"),
        ]
        operands = [value, f"weight.{number}", f"bias.{number}"]
        nodes.append(helper.make_node("Gemm", operands, [made], transB=1))
        value = made
        if has_relu:
            value = output if is_last else f"relu.{number}"
            nodes.append(helper.make_node("Relu", [made], [value]))
    if not layers:
        nodes.append(helper.make_node("Identity", [value], [output]))
    dim = layers[-1][0].shape[0] if layers else width
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "student",
        [helper.make_tensor_value_info(names[0], kind, ["n", width])],
        [helper.make_tensor_value_info(output, kind, ["n", dim])],
        weights,
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=_IR_VERSION,
        producer_name="hopline",
    )
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def write_student(
    repository: Path,
    name: str,
    version: str,
    student: Student,
    teacher: ModelSpec,
    graph: Graph,
    rows: FloatArray,
    figures: dict[str, object],
    *,
    overwrite: bool,
    structure: StructureRows | None = None,
) -> Path:
    """Write a student as a model that `hopline serve` loads.

    It has no message-passing layer: level 0 is its last hidden layer, computed from a node's own row, and
    the head is its last layer. It fits every graph whose nodes have the features that it reads.

    Args:
        rows: float32 [n, d], for comparing the files.
        figures: of the distillation, for model.json's `parity`.
        overwrite: replace an existing version.
        structure: what the student reads in addition to features; it becomes part of the artifact.

    Returns: the version's folder.
    Raises:
        PackagingError: a bad name, or the version exists.
        ParityError: the written files do not give the student's answers.
    """
    layers = Layers(student, teacher.task)
    node_type = teacher.head.node_type
    schema = msgspec.to_builtins(graph.schema)
    inputs: tuple[StageInput, ...] = (StageInput("features", "features"),)
    name_in = "features"
    if structure is not None:
        inputs += (StageInput("structure", "structure", columns=(0, structure.rows.shape[1])),)
        name_in = "x"
    stage = Stage(
        layers.num_states,
        f"layers/0.{node_type}.onnx",
        inputs,
        packed=structure is not None,
        structure="" if structure is None else "structure",
    )
    read = rows[:_CHECKED]
    if structure is not None:
        read = np.concatenate([read, structure.rows[:_CHECKED]], axis=1)
    spec = ModelSpec(
        name=name,
        version=version,
        task=teacher.task,
        num_layers=0,
        graph_schema={"node_types": {node_type: schema["node_types"][node_type]}, "edge_types": {}},
        fanouts={},
        head=Head(node_type, layers.output_dim, file="head.onnx"),
        levels=({node_type: stage},),
        opset=OPSET,
        classes=teacher.classes,
        producer=_producer(),
    )
    with new_version(repository, name, version, overwrite=overwrite) as place:
        assert stage.file is not None
        path = place.folder / stage.file
        write_layers(path, layers.hidden, (name_in, "h"), last_relu=True, width=read.shape[1])
        head = place.folder / "head.onnx"
        write_layers(head, [layers.out], ("h", "logits"), last_relu=False, width=layers.num_states)
        found = session(path).run(["h"], {name_in: read})[0]
        logits = session(head).run(["logits"], {"h": found})[0]
        difference = _compare(logits, student, teacher, read)
        if structure is not None:
            kind = graph.schema.node_types[node_type].id_kind
            num_nodes = graph.nodes[node_type].num_nodes
            structure_spec = StructureSpec(graph.version, node_type, num_nodes, kind, structure.restart)
            folder = place.folder / stage.structure
            _write_structure(folder, structure.rows, structure.base, structure_spec, graph)
        parity = {"max_abs_diff": difference, "tolerance": _TOLERANCE, **figures}
        write_spec(place.folder, msgspec.structs.replace(spec, parity=parity))
    return place.path


def write_fallback(
    folder: Path,
    student: Student,
    teacher: ModelSpec,
    rows: FloatArray,
    origin: tuple[str, str],
    agreement: float,
) -> Path:
    """Write student.onnx next to its teacher; an existing file is replaced.

    Args:
        folder: the teacher's version folder.
        rows: float32 [n, d] feature rows, for comparing the file.
        origin: model and version of the student as a separate model.
        agreement: share of held-out nodes on which it agrees with its teacher.

    Returns: the file.
    Raises:
        PackagingError: the folder cannot be written.
        ParityError: the written file does not give the student's answers.
    """
    layers = Layers(student, teacher.task)
    try:
        with tempfile.TemporaryDirectory(prefix=".student-", dir=folder) as place:
            draft = Path(place) / MODEL_FILE
            width = rows.shape[1]
            every = [*layers.hidden, layers.out]
            write_layers(draft, every, ("features", "logits"), last_relu=False, width=width)
            _compare(
                session(draft).run(["logits"], {"features": rows[:_CHECKED]})[0], student, teacher, rows
            )
            spec = StudentSpec(
                sha256_of(draft), teacher.head.node_type, width, layers.output_dim, *origin, agreement
            )
            spec_draft = Path(place) / SPEC_FILE
            spec_draft.write_bytes(msgspec.json.format(msgspec.json.encode(spec), indent=1))
            # A server that loads the teacher meanwhile finds no student, never a partial one.
            (folder / SPEC_FILE).unlink(missing_ok=True)
            publish_file(draft, folder / MODEL_FILE, durable=False)
            publish_file(spec_draft, folder / SPEC_FILE, durable=False)
    except OSError as error:
        raise PackagingError(
            f"{folder}: the student cannot be written next to its teacher: {error.strerror or error}"
        ) from None
    return folder / MODEL_FILE


def _compare(logits: FloatArray, student: Student, teacher: ModelSpec, rows: FloatArray) -> float:
    """The largest difference between written files and the trained module, on the first rows."""
    with torch.no_grad():
        expected = student(torch.from_numpy(np.ascontiguousarray(rows[:_CHECKED]))).numpy()
    if teacher.task == "binary":
        expected = expected[:, 1:] - expected[:, :1]
    difference = float(np.abs(logits - expected).max(initial=0.0))
    if not difference <= _TOLERANCE * max(1.0, float(np.abs(expected).max(initial=0.0))):
        raise ParityError(f"the written student differs from the trained one by {difference:g}")
    return difference


def _producer() -> dict[str, str]:
    names = ("hopline", "torch", "onnx", "onnxruntime", "numpy")
    return {name: importlib.metadata.version(name) for name in names}


def _write_structure(
    folder: Path, rows: FloatArray, base: FloatArray, spec: StructureSpec, graph: Graph
) -> None:
    """Write a folder.

    Args:
        rows: float32 [N, S]. base: float32 [d, S].
        graph: that the rows were computed from.
    """
    nodes = graph.nodes[spec.node_type]
    everyone = np.arange(nodes.num_nodes)
    lists = InLists(graph, spec.node_type)
    seen, degrees = lists.seen(everyone, everyone, np.asarray(nodes.features[:], np.float32))
    folder.mkdir(parents=True)
    np.save(folder / "rows.npy", np.ascontiguousarray(rows, np.float32))
    np.save(folder / "base.npy", base)
    np.save(folder / "degrees.npy", degrees)
    np.save(folder / "seen.npy", seen)
    for name, array in nodes.ids.arrays().items():
        np.save(folder / f"ids.{name}.npy", array)
    (folder / "structure.json").write_bytes(msgspec.json.format(msgspec.json.encode(spec), indent=1))
