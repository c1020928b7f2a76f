"""The report of a distillation: how good the student is, by degree, and compared with which models.

It says whether the student is good enough to be deployed, and can be drawn: accuracy by degree and a
reliability curve, as hand-written SVG.
"""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.types import FloatArray, IdArray

_WIDTH, _HEIGHT, _SIDE, _TOP, _LEFT = 860, 400, 300, 60, 60
_COLORS = {"teacher": "#4477aa", "student": "#ee6677", "mlp": "#999999", "agreement": "#228833"}
_NAMES = {"teacher": "teacher", "student": "student", "mlp": "plain MLP", "agreement": "agreement"}


def draw(report: DistillReport) -> str:
    """SVG text, one drawing of two panels."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 22, f"{report.student}, taught by {report.teacher}", size=15),
        _text(_LEFT, 40, report.why, color="#555555"),
        *_by_degree(report),
        *_reliability(report),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _by_degree(report: DistillReport) -> list[str]:
    names = ["teacher", "student"] + ["mlp"] * (report.mlp_accuracy is not None)
    if report.judged_by != "labels":
        names = ["agreement"]
    title = "agreement by in-degree" if names == ["agreement"] else "accuracy by in-degree"
    parts = [*_frame(_LEFT, title), *_legend(_LEFT, names)]
    slot = _SIDE / max(1, len(report.by_degree))
    bar = 0.8 * slot / len(names)
    for number, bucket in enumerate(report.by_degree):
        at = _LEFT + (number + 0.1) * slot
        for k, name in enumerate(names):
            value = _value(bucket, name)
            if value is not None:
                height = value * _SIDE
                parts.append(
                    f'<rect x="{at + k * bar:.1f}" y="{_TOP + _SIDE - height:.1f}" width="{bar:.1f}" '
                    f'height="{height:.1f}" fill="{_COLORS[name]}"><title>{_NAMES[name]} {value:.2%}, '
                    f"{bucket.nodes} nodes</title></rect>"
                )
        middle = at + 0.4 * slot
        parts.append(_text(middle, _TOP + _SIDE + 16, bucket.degrees, size=10, anchor="middle"))
    return parts


def _value(bucket: Bucket, name: str) -> float | None:
    found: float | None = getattr(bucket, name)
    return found


def _reliability(report: DistillReport) -> list[str]:
    left = _LEFT + _SIDE + 110
    what = "right" if report.judged_by == "labels" else "equal to its teacher's"
    parts = [*_frame(left, f"reliability: share that is {what}"), *_legend(left, list(report.calibration))]
    parts.append(
        f'<line x1="{left}" y1="{_TOP + _SIDE}" x2="{left + _SIDE}" y2="{_TOP}" stroke="#bbbbbb" '
        'stroke-dasharray="4 4"/>'
    )
    for name, found in report.calibration.items():
        points = [
            (left + confidence * _SIDE, _TOP + (1 - right) * _SIDE, count)
            for confidence, right, count in found.bins
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{_COLORS[name]}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_COLORS[name]}"><title>{count} nodes; '
            f"calibration error {found.ece:.3f}</title></circle>"
            for x, y, count in points
        ]
    parts.append(_text(left + _SIDE / 2, _TOP + _SIDE + 32, "confidence", anchor="middle"))
    return parts


def _frame(left: float, title: str) -> list[str]:
    parts = [
        f'<rect x="{left}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#333333"/>',
        _text(left, _TOP - 6, title),
    ]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _TOP + (1 - tick) * _SIDE
        parts.append(_text(left - 6, y + 4, f"{tick:.0%}", size=10, anchor="end"))
    return parts


def _legend(left: float, names: list[str]) -> list[str]:
    return [
        _text(left + _SIDE + 8, _TOP + 14 + 16 * k, _NAMES[name], color=_COLORS[name])
        for k, name in enumerate(names)
    ]


def _text(
    x: float, y: float, text: str, *, size: int = 12, color: str = "#222222", anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


#: A student may lose this share of its teacher's accuracy.
_TOLERANCE = 0.02


def judge(agreement: float, teacher: float | None, student: float | None) -> tuple[bool, str]:
    """Verdict on a student: good if it is within 2 % of its teacher.

    If classes are known, its accuracy must be at least 0.98 of the teacher's. It may well be better; then
    their agreement does not matter. If classes are unknown, it must agree with its teacher on at least 98 %
    of the nodes.

    Args:
        agreement: share of held-out nodes on which both choose the same class.
        teacher, student: accuracy on held-out nodes; None if no class is known.

    Returns: the verdict, and the reason in words.
    """
    if teacher is not None and student is not None:
        least = (1 - _TOLERANCE) * teacher
        shown = f"accuracy {student:.2%}, its teacher's {teacher:.2%}; required: at least {least:.2%}"
        return student >= least, shown
    least = 1 - _TOLERANCE
    return (
        agreement >= least,
        f"it agrees with its teacher on {agreement:.2%}; required: at least {least:.0%}",
    )


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


class DistillReport(msgspec.Struct, frozen=True):
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
        within: True if the student passes the gate; see `gate`.
        why: the reason of the gate.
        written: True if the student is in the repository.
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
