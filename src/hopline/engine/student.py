"""The student of a teacher: an MLP over a node's own feature row, for when neighbours are not available.

Two files in the teacher's version folder. `student.onnx` reads `features` float32 [n, d] and returns
`logits` float32 [n, c], as the teacher does. `student.json` (`StudentSpec`) names the teacher and the hash
of the file. The teacher's model.json does not change, so precomputed files and stored states of the teacher
stay valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from hopline.artifact import ModelSpec, sha256_of
from hopline.errors import ArtifactCorrupted, ArtifactError
from hopline.types import UNREADABLE, FloatArray

SPEC_FILE, MODEL_FILE = "student.json", "student.onnx"


class StudentSpec(msgspec.Struct, frozen=True):
    """The content of student.json.

    Attributes:
        sha256: of student.onnx.
        node_type, feature_dim: whose rows it reads.
        output_dim: columns of its logits.
        model, version: the model that it was copied from: the student as a separate model.
        agreement: share of held-out nodes on which it predicts the same class as its teacher.
    """

    sha256: str
    node_type: str
    feature_dim: int
    output_dim: int
    model: str
    version: str
    agreement: float


class Student:
    """A student, loaded. One call at a time: calls share buffers.

    Raises:
        ArtifactError: student.json is malformed, or of another model than the teacher.
        ArtifactCorrupted: student.onnx is absent or changed.
    """

    def __init__(self, folder: Path, spec: ModelSpec, threads: int = 1) -> None:
        # Imported here: a function platform reads student.json, and seldom needs ONNX Runtime.
        from hopline.runtimes.onnx import CHUNK_ROWS, RowStage

        self.spec = read_student(folder, spec)
        self._chunk_rows = CHUNK_ROWS
        model, dim = folder / MODEL_FILE, self.spec.feature_dim
        if not model.is_file():
            raise ArtifactCorrupted(f"{model}: student.json exists but student.onnx does not; distil again")
        actual = sha256_of(model)
        if actual != self.spec.sha256:
            raise ArtifactCorrupted(
                f"{model}: sha256 is {actual[:12]}…, student.json says {self.spec.sha256[:12]}…; copy both "
                "again or distil again"
            )
        self._stage = RowStage(model, ["features"], [dim], "logits", self.spec.output_dim, threads)

    def logits(self, rows: FloatArray) -> FloatArray:
        """float32 [n, d] feature rows to float32 [n, c], a new array."""
        n = rows.shape[0]
        found = np.empty((n, self.spec.output_dim), np.float32)
        for a in range(0, n, self._chunk_rows):
            b = min(a + self._chunk_rows, n)
            self._stage.inputs[0][: b - a] = rows[a:b]
            found[a:b] = self._stage.run(b - a)
        return found


def read_student(folder: Path, teacher: ModelSpec) -> StudentSpec:
    """Read student.json, and check that it is of this teacher.

    Raises: ArtifactError: as `Student`.
    """
    path = folder / SPEC_FILE
    try:
        spec = msgspec.json.decode(path.read_bytes(), type=StudentSpec)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}") from None
    except UNREADABLE as error:
        raise ArtifactError(f"{path}: not a valid student.json: {error}") from None
    head = teacher.head
    schema = teacher.graph_schema["node_types"]
    assert isinstance(schema, Mapping)
    differences = [
        f"{what} {have!r}, its teacher's {want!r}"
        for what, have, want in (
            ("node type", spec.node_type, head.node_type),
            ("width of features", spec.feature_dim, schema[head.node_type]["feature_dim"]),
            ("width of logits", spec.output_dim, head.output_dim),
        )
        if have != want
    ]
    if differences:
        raise ArtifactError(
            f"{path}: not a student of {teacher.name}/{teacher.version}: " + "; ".join(differences)
        )
    return spec


def student_of(folder: Path, spec: ModelSpec, threads: int = 1) -> Student | None:
    """Load the student of a teacher, or return None where it has none."""
    return Student(folder, spec, threads) if (folder / SPEC_FILE).is_file() else None
