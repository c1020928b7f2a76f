"""The student of a model: an MLP over feature rows (see `engine/student.py` for its two files)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hopline.artifact import ModelSpec, sha256_of
from hopline.engine.inline_features import feature_rows
from hopline.errors import ArtifactCorrupted, ArtifactError
from hopline.graph.schema import NodeTypeSchema
from hopline.types import UNREADABLE, FloatArray, InlineNode

SPEC_FILE, MODEL_FILE = "student.json", "student.onnx"


class Student:
    """A student of a node model.

    Args:
        folder: version folder with the student.
        spec: specification of its teacher.

    Raises:
        ArtifactError: student.json is malformed, or not of this teacher.
    """

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        path = folder / SPEC_FILE
        try:
            header = msgspec.json.decode(path.read_bytes(), type=_Header)
        except OSError as error:
            raise ArtifactError(f"{path} cannot be read: {error.strerror or error}") from None
        except UNREADABLE as error:
            raise ArtifactError(f"{path}: not a valid student.json: {error}") from None
        head = spec.head
        if (header.node_type, header.output_dim) != (head.node_type, head.output_dim):
            raise ArtifactError(
                f"{path}: not a student of {spec.name}/{spec.version}: it has {header.output_dim} logits "
                f"of {header.node_type!r}, its teacher {head.output_dim} of {head.node_type!r}"
            )
        schema: Any = spec.graph_schema["node_types"]
        self._schema = msgspec.structs.replace(
            msgspec.convert(schema[header.node_type], NodeTypeSchema), feature_dim=header.feature_dim
        )
        self._node_type = header.node_type
        self._model = folder / MODEL_FILE
        self._sha256 = header.sha256
        self._session: Any = None

    def logits(self, rows: FloatArray) -> FloatArray:
        """Logits of feature rows: float32 [n, feature_dim] to float32 [n, c].

        Raises:
            ArtifactCorrupted: student.onnx is missing or changed; raised at the first call.
        """
        if self._session is None:
            self._session = self._open_session()
        found: FloatArray = self._session.run(["logits"], {"features": np.ascontiguousarray(rows)})[0]
        return found

    def inline_rows(self, nodes: list[InlineNode]) -> FloatArray:
        """Features of inline nodes, float32 [n, d].

        Raises: BadRequest: as of `feature_rows`.
        """
        return feature_rows(nodes, self._node_type, self._schema)

    def _open_session(self) -> Any:
        if not self._model.is_file():
            raise ArtifactCorrupted(
                f"{self._model}: student.json exists but student.onnx is missing; distil again"
            )
        actual = sha256_of(self._model)
        if actual != self._sha256:
            raise ArtifactCorrupted(
                f"{self._model}: sha256 is {actual[:12]}…, student.json says {self._sha256[:12]}…; copy "
                "both again or distil again"
            )
        from hopline.runtimes.ort import ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        return ort.InferenceSession(str(self._model), options, providers=["CPUExecutionProvider"])


class _Header(msgspec.Struct):
    """The needed fields of student.json."""

    sha256: str
    node_type: str
    feature_dim: int
    output_dim: int
