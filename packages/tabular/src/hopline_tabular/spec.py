"""A version of a tabular model on disk: model.json of kind "tabular", with one ONNX file over columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from hopline.answering.hashes import content_hash
from hopline.artifact import hash_of, read_artifact
from hopline.types import ModelInfo, TensorInfo

#: Represents a missing string in a model's tensors and fitted categories: a private-use character
#: distinguishes it from real text.
NULL_STRING = "\ue000null"


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input column of a tabular model.

    Attributes:
        dtype: `float` for numbers, `int` for integers, `string` for text.
        nullable: values may be missing (null, None, NaN).
        default: replaces the column if a request omits it; None: the column is required.
        values: the only valid values, if the fitted preprocessing accepts no others; else empty.
    """

    name: str
    dtype: Literal["float", "int", "string"]
    nullable: bool = False
    default: float | int | str | None = None
    values: tuple[int | float | str, ...] = ()


class TabularSpec(msgspec.Struct, frozen=True):
    """The content of model.json.

    The ONNX file has inputs `numbers` float64 [n, numeric columns] (NaN where missing) and `strings` [n,
    string columns] (`NULL_STRING` where missing), each in the order of `columns`; an input without columns
    is omitted. It returns `probabilities` float32, [n] of the second class for task `binary` and [n,
    classes] for `multiclass`; for `regression` `logits` float32 [n, targets].

    Attributes:
        name, version: as in the folder's path.
        columns: in the order of the fitted estimator.
        outputs: outputs that requests can select.
        classes: class names, in the order of probabilities and labels.
        min_rows: smallest number of rows of a call with the same arithmetic; smaller calls are padded.
        opset, ml_opset: opset versions of the domains ai.onnx and ai.onnx.ml.
        preprocessing: identity of the fitted preprocessing: hex sha256 of the columns and of the ONNX form
            of all steps before the last one.
        preprocess_file: that ONNX form, output `features`; None if there is no such step.
        output_dim: columns of `logits`, or number of classes.
        files, parity, producer: as in `hopline.artifact.ModelSpec`.
    """

    name: str
    version: str
    task: Literal["binary", "multiclass", "regression"]
    columns: tuple[Column, ...]
    outputs: tuple[str, ...]
    output_dim: int
    kind: Literal["tabular"] = "tabular"
    format: int = 1
    classes: tuple[str, ...] = ()
    file: str = "model.onnx"
    preprocess_file: str | None = None
    min_rows: int = 1
    opset: int = 0
    ml_opset: int = 0
    preprocessing: str = ""
    files: dict[str, str] = {}
    parity: dict[str, object] = {}
    producer: dict[str, str] = {}

    def files_read(self, folder: Path) -> set[str]:
        """As `hopline.artifact.Spec.files_read`."""
        return {name for name in (self.file, self.preprocess_file) if name is not None}


def read_tabular(folder: Path, *, verify: bool = True) -> TabularSpec:
    """Read and check a version; as `hopline.artifact.read_artifact`."""
    return read_artifact(folder, TabularSpec, "tabular", verify=verify)


def model_hashes(spec: TabularSpec) -> dict[str, str]:
    """The three hashes of a tabular model.

    preprocessing_hash: of all steps before the last one. feature_schema_hash: names, order, types and
    defaults of the columns.
    """
    columns = [msgspec.structs.astuple(column) for column in spec.columns]
    return {
        "artifact_hash": content_hash(spec),
        "preprocessing_hash": spec.preprocessing[:16],
        "feature_schema_hash": hash_of(columns),
    }


_DATATYPES = {"float": "FP64", "int": "INT64", "string": "BYTES"}


def describe(
    spec: TabularSpec,
    versions: tuple[str, ...],
    version: str,
    *,
    state: str = "UNAVAILABLE",
    reason: str = "not loaded",
    properties: Mapping[str, Any] | None = None,
) -> ModelInfo:
    """Description of a version for transports."""
    wide = (-1, spec.output_dim)
    tensors = {
        "probabilities": TensorInfo("probabilities", "FP32", (-1,) if spec.task == "binary" else wide),
        "label": TensorInfo("label", "INT64", (-1,)),
        "logits": TensorInfo("logits", "FP32", wide),
    }
    return ModelInfo(
        name=spec.name,
        versions=versions,
        version=version,
        state=state,
        reason=reason,
        kind="tabular",
        id_kind="none",
        inputs=tuple(
            TensorInfo(column.name, _DATATYPES[column.dtype], (-1,), column.default is not None)
            for column in spec.columns
        ),
        outputs=tuple(tensors[name] for name in spec.outputs),
        default_outputs=spec.outputs,
        graph_version="",
        properties=properties or {},
    )
