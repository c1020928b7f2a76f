"""The report as a drawing: accuracy by degree and a reliability curve, as hand-written SVG."""

from __future__ import annotations

from html import escape

from hopline.jobs.distill.report import Bucket, Report

_WIDTH, _HEIGHT, _SIDE, _TOP, _LEFT = 860, 400, 300, 60, 60
_COLORS = {"teacher": "#4477aa", "student": "#ee6677", "mlp": "#999999", "agreement": "#228833"}
_NAMES = {"teacher": "teacher", "student": "student", "mlp": "plain MLP", "agreement": "agreement"}


def draw(report: Report) -> str:
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


def _by_degree(report: Report) -> list[str]:
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


def _reliability(report: Report) -> list[str]:
    left = _LEFT + _SIDE + 110
    what = "right" if report.judged_by == "labels" else "equal to its teacher's"
    parts = [
        *_frame(left, f"reliability: share that is {what}"),
        *_legend(left, list(report.calibration)),
    ]
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
