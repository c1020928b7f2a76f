"""A plot of anomaly scores over time with events and incidents, as SVG.

It has one row for each test period. Behind the line of anomaly scores, on a logarithmic scale, each event
is green if it was detected and grey if it was missed. Below is a bar for each incident, red if it is false.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from hopline_mesh.evaluate.recording import Period, Recording
from hopline_mesh.evaluate.scores import Scores, episodes
from hopline_mesh.evaluate.times import clock, plain
from hopline_mesh.incident import Verdict

_WIDTH, _LEFT, _RIGHT, _TOP = 1200, 60, 20, 80
_PANEL, _BARS, _BETWEEN = 150, 14, 60
_LOW, _HIGH = 0.1, 100.0
_FOUND, _MISSED, _FALSE, _LINE = "#a6dba0", "#bbbbbb", "#ee6677", "#4477aa"
#: Maximum number of points of a line; more than the pixels are useless.
_POINTS = 2400


def draw(name: str, recording: Recording, verdicts: Sequence[Verdict], scores: Scores) -> str:
    """Return the SVG text, with one panel for each test period."""
    periods = recording.test
    height = _TOP + len(periods) * (_PANEL + _BARS + _BETWEEN)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(_LEFT, 24, f"{name} on {recording.name}", size=15),
        _text(
            _LEFT,
            42,
            f"{scores.found} of {scores.events} events detected, {scores.false_episodes} false incidents "
            f"in {scores.hours:.1f} h",
            color="#555555",
        ),
        *_legend(),
    ]
    for number, period in enumerate(periods):
        top = _TOP + number * (_PANEL + _BARS + _BETWEEN)
        parts += _panel(period, top, verdicts, scores)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(period: Period, top: int, verdicts: Sequence[Verdict], scores: Scores) -> list[str]:
    span = _WIDTH - _LEFT - _RIGHT

    def x(time_s: float) -> float:
        inside = min(max(time_s, period.start_s), period.end_s)
        return _LEFT + span * (inside - period.start_s) / (period.end_s - period.start_s)

    parts = []
    for outcome in scores.outcomes:
        event = outcome.event
        if event.start_s not in period:
            continue
        found = outcome.episode is not None
        result = f"detected after {outcome.minutes:.1f} min" if outcome.minutes is not None else "missed"
        title = f"{event.kind} {event.service}, {clock(event.start_s)}: {result}"
        parts.append(
            f'<rect x="{x(event.start_s):.1f}" y="{top}" width="{x(event.end_s) - x(event.start_s):.1f}" '
            f'height="{_PANEL}" fill="{_FOUND if found else _MISSED}"><title>'
            f"{escape(plain(title))}</title></rect>"
        )
    parts += _scale(top)
    mine = [verdict for verdict in verdicts if verdict.time_s in period]
    parts += _lines(mine, top, x)
    false = {episode.id for episode in scores.false}
    for episode in episodes(verdicts):
        if episode.start_s not in period:
            continue
        width = max(2.0, x(episode.end_s) - x(episode.start_s))
        first = episode.first.suspects[0].service if episode.first.suspects else "no suspect"
        parts.append(
            f'<rect x="{x(episode.start_s):.1f}" y="{top + _PANEL + 3}" width="{width:.1f}" '
            f'height="{_BARS - 4}" fill="{_FALSE if episode.id in false else "#228833"}"><title>'
            f"{escape(plain(f'{clock(episode.start_s)}: {first}'))}</title></rect>"
        )
    below = top + _PANEL + _BARS + 14
    parts.append(_text(_LEFT, below, clock(period.start_s)))
    parts.append(_text(_WIDTH - _RIGHT, below, clock(period.end_s), anchor="end"))
    return parts


def _lines(verdicts: Sequence[Verdict], top: int, x: Callable[[float], float]) -> list[str]:
    """Return the line of anomaly scores; for several intervals in a pixel, the largest."""
    if not verdicts:
        return []
    stride = max(1, math.ceil(len(verdicts) / _POINTS))
    points = []
    for start in range(0, len(verdicts), stride):
        chunk = verdicts[start : start + stride]
        best = max(chunk, key=lambda verdict: verdict.score)
        points.append(f"{x(best.time_s):.1f},{_y(best.score, top):.1f}")
    return [f'<polyline points="{" ".join(points)}" fill="none" stroke="{_LINE}" stroke-width="1"/>']


def _y(score: float, top: int) -> float:
    inside = min(max(score, _LOW), _HIGH)
    return top + _PANEL * (1 - math.log(inside / _LOW) / math.log(_HIGH / _LOW))


def _scale(top: int) -> list[str]:
    parts = [
        f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH - _LEFT - _RIGHT}" height="{_PANEL}" fill="none" '
        'stroke="#333333"/>'
    ]
    for tick in (0.1, 1.0, 10.0, 100.0):
        y = _y(tick, top)
        parts.append(_text(_LEFT - 6, y + 4, f"{tick:g}", size=10, anchor="end"))
        if tick == 1.0:
            parts.append(
                f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#333333" '
                'stroke-dasharray="4 4"/>'
            )
    return parts


def _legend() -> list[str]:
    parts = []
    at = _LEFT
    for color, text in (
        (_LINE, "anomaly score, 1 is the threshold"),
        (_FOUND, "event, detected"),
        (_MISSED, "event, missed"),
        ("#228833", "incident"),
        (_FALSE, "false incident"),
    ):
        parts.append(f'<rect x="{at}" y="54" width="12" height="12" fill="{color}"/>')
        parts.append(_text(at + 17, 64, text))
        at += 40 + 7 * len(text)
    return parts


def _text(
    x: float, y: float, text: str, *, size: int = 12, color: str = "#222222", anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" text-anchor="{anchor}">'
        f"{escape(plain(text))}</text>"
    )
