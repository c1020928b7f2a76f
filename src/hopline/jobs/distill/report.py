"""The report of a distillation: how good the student is, by degree, and compared with which models."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.types import FloatArray, IdArray

#: Upper ends of the in-degree buckets; the last one is open.
DEGREES = (0, 2, 5, 10, 20, 50)
#: Bins of confidence, of equal width.
NUM_BINS = 15


class Bucket(msgspec.Struct, frozen=True):
    """Held-out nodes of some in-degrees.

    Attributes:
        degrees: in words, for example "3–5".
        nodes: how many.
        agreement: share on which the student agrees with its teacher.
        teacher, student, mlp: accuracy on those with a known class; None where there are none.
    """

    degrees: str
    nodes: int
    agreement: float
    teacher: float | None = None
    student: float | None = None
    mlp: float | None = None


class Calibration(msgspec.Struct, frozen=True):
    """Calibration: the fit of a model's confidence to its accuracy (Guo et al., arXiv 1706.04599).

    Attributes:
        ece: expected calibration error over bins of equal width.
        bins: (mean confidence, share that is right, nodes) of each bin that is not empty.
    """

    ece: float
    bins: tuple[tuple[float, float, int], ...]


class Report(msgspec.Struct, frozen=True):
    """One distillation; shares are of held-out nodes.

    Attributes:
        teacher, student: name/version.
        graph: its version.
        judged_by: "labels" if classes are known; else "teacher": then right means equal to the teacher,
            and accuracies are missing.
        agreement: share on which the student agrees with its teacher.
        teacher_accuracy, student_accuracy, mlp_accuracy: the last one is that of the same network, trained
            on known classes alone.
        by_degree: the shares by in-degree.
        calibration: by "teacher" (only with labels), "student" and "mlp" (only with labels).
        best_epoch, epochs: the epoch of the student, and the number of epochs.
        nodes: numbers of nodes by part: fit, valid, held_out, labelled, held_out_labelled.
        structure: columns of structure features that the student reads, 0 for none.
        fallback_agreement: of the fallback student next to the teacher, which reads features alone.
        settings: of the training.
        within: whether the student passes the gate; see `gate`.
        why: the reason of the gate.
        written: whether the student is in the repository.
        path, fallback: of the student, and of its teacher's student.onnx; "" if not written.
        seconds: by step.
    """

    teacher: str
    student: str
    graph: str
    judged_by: str
    agreement: float
    by_degree: tuple[Bucket, ...]
    calibration: dict[str, Calibration]
    best_epoch: int
    epochs: int
    nodes: dict[str, int]
    structure: int
    fallback_agreement: float
    settings: dict[str, Any]
    within: bool
    why: str
    teacher_accuracy: float | None = None
    student_accuracy: float | None = None
    mlp_accuracy: float | None = None
    written: bool = False
    path: str = ""
    fallback: str = ""
    seconds: dict[str, float] = {}


def share(mask: NDArray[np.bool_]) -> float | None:
    """The share that is true; None for an empty mask."""
    return float(mask.mean()) if mask.shape[0] else None


def calibration(probabilities: FloatArray, truth: IdArray) -> Calibration:
    """The calibration of float32 [n, C] against int64 [n]."""
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == truth
    bins = np.minimum((confidence * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    found = []
    ece = 0.0
    for number in np.unique(bins):
        inside = bins == number
        mean, accuracy = float(confidence[inside].mean()), float(right[inside].mean())
        found.append((mean, accuracy, int(inside.sum())))
        ece += abs(mean - accuracy) * inside.mean()
    return Calibration(float(ece), tuple(found))


def by_degree(degrees: IdArray, labels: IdArray, chosen: dict[str, IdArray]) -> tuple[Bucket, ...]:
    """Shares by in-degree.

    Args:
        degrees, labels: int64 [n] of the held-out nodes; labels -1 where unknown.
        chosen: class by "teacher", "student" and, if there is one, "mlp": int64 [n].
    """
    buckets = np.searchsorted(np.array(DEGREES), degrees)
    found = []
    for number in range(len(DEGREES) + 1):
        inside = buckets == number
        if not inside.any():
            continue
        known = inside & (labels >= 0)
        accuracy = {name: share((rows == labels)[known]) for name, rows in chosen.items()}
        same = float((chosen["teacher"] == chosen["student"])[inside].mean())
        found.append(Bucket(_words(number), int(inside.sum()), same, **accuracy))
    return tuple(found)


def _words(number: int) -> str:
    if number == len(DEGREES):
        return f"above {DEGREES[-1]}"
    low, high = (DEGREES[number - 1] + 1 if number else 0), DEGREES[number]
    return str(low) if low == high else f"{low}–{high}"
