"""A plot of anomaly scores over time with events and incidents, as SVG.

It has one row for each test period. Behind the line of anomaly scores, on a logarithmic scale, each event
is green if it was detected and grey if it was missed. Below is a bar for each incident, red if it is false.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, tostring

from hopline_mesh.evaluate.recording import Period, Recording
from hopline_mesh.evaluate.scores import Scores, episodes
from hopline_mesh.evaluate.times import clock, plain
from hopline_mesh.incident import Verdict

_WIDTH, _LEFT, _RIGHT, _TOP = 1200, 60, 20, 80
_PANEL, _BARS, _BETWEEN = 150, 14, 60
_LOW, _HIGH = 0.1, 100.0
_FOUND, _MISSED, _TRUE, _FALSE, _LINE = "#a6dba0", "#bbbbbb", "#228833", "#ee6677", "#4477aa"
#: Maximum number of points of a line, twice the pixels; of several intervals, the largest score is shown.
_POINTS = 2400


def draw(name: str, recording: Recording, verdicts: Sequence[Verdict], scores: Scores) -> str:
    """Return the SVG text, with one panel for each test period."""
    height = _TOP + len(recording.test) * (_PANEL + _BARS + _BETWEEN)
    svg = Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {_WIDTH} {height}")
    svg.attrib |= {"width": str(_WIDTH), "height": str(height), "font-family": "sans-serif"}
    _add(svg, "rect", width=_WIDTH, height=height, fill="white")
    _text(svg, _LEFT, 24, f"{name} on {recording.name}", size=15)
    found = f"{scores.found} of {scores.events} events detected"
    false = f"{scores.false_episodes} false incidents in {scores.hours:.1f} h"
    _text(svg, _LEFT, 42, f"{found}, {false}")
    at = _LEFT
    for color, text in (
        (_LINE, "anomaly score, 1 is the threshold"),
        (_FOUND, "event, detected"),
        (_MISSED, "event, missed"),
        (_TRUE, "incident"),
        (_FALSE, "false incident"),
    ):
        _add(svg, "rect", x=at, y=54, width=12, height=12, fill=color)
        _text(svg, at + 17, 64, text)
        at += 40 + 7 * len(text)
    for number, period in enumerate(recording.test):
        _panel(svg, period, _TOP + number * (_PANEL + _BARS + _BETWEEN), verdicts, scores)
    return tostring(svg, encoding="unicode")


def _panel(svg: Element, period: Period, top: int, verdicts: Sequence[Verdict], scores: Scores) -> None:
    right = _WIDTH - _RIGHT

    def x(time_s: float) -> float:
        inside = min(max(time_s, period.start_s), period.end_s)
        return _LEFT + (right - _LEFT) * (inside - period.start_s) / (period.end_s - period.start_s)

    def y(score: float) -> float:
        inside = min(max(score, _LOW), _HIGH)
        return top + _PANEL * (1 - math.log(inside / _LOW) / math.log(_HIGH / _LOW))

    def bar(start_s: float, end_s: float, y: int, height: int, fill: str, title: str) -> None:
        width = max(2.0, x(end_s) - x(start_s))
        rect = _add(svg, "rect", x=x(start_s), y=y, width=width, height=height, fill=fill)
        _add(rect, "title", title)

    for outcome in scores.outcomes:
        event, minutes = outcome.event, outcome.minutes
        if event.start_s in period:
            result = "missed" if minutes is None else f"detected after {minutes:.1f} min"
            title = f"{event.kind} {event.service}, {clock(event.start_s)}: {result}"
            fill = _MISSED if minutes is None else _FOUND
            bar(event.start_s, event.end_s, top, _PANEL, fill, title)
    width = right - _LEFT
    _add(svg, "rect", x=_LEFT, y=top, width=width, height=_PANEL, fill="none", stroke="#333333")
    for tick in (0.1, 1.0, 10.0, 100.0):
        _text(svg, _LEFT - 6, y(tick) + 4, f"{tick:g}", size=10, anchor="end")
    ends = {"x1": _LEFT, "x2": right, "y1": y(1.0), "y2": y(1.0)}
    _add(svg, "line", "", **ends, stroke="#333333", stroke_dasharray="4 4")
    mine = [verdict for verdict in verdicts if verdict.time_s in period]
    stride = max(1, math.ceil(len(mine) / _POINTS))
    chunks = [mine[start : start + stride] for start in range(0, len(mine), stride)]
    largest = [max(chunk, key=lambda verdict: verdict.score) for chunk in chunks]
    points = " ".join(f"{x(verdict.time_s):.1f},{y(verdict.score):.1f}" for verdict in largest)
    _add(svg, "polyline", points=points, fill="none", stroke=_LINE)
    false = {episode.id for episode in scores.false}
    for episode in episodes(verdicts):
        if episode.start_s in period:
            suspects = episode.first.suspects
            title = f"{clock(episode.start_s)}: {suspects[0].service if suspects else 'no suspect'}"
            fill = _FALSE if episode.id in false else _TRUE
            bar(episode.start_s, episode.end_s, top + _PANEL + 3, _BARS - 4, fill, title)
    below = top + _PANEL + _BARS + 14
    _text(svg, _LEFT, below, clock(period.start_s))
    _text(svg, right, below, clock(period.end_s), anchor="end")


def _text(svg: Element, x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> None:
    _add(svg, "text", text, x=x, y=y, font_size=size, fill="#222222", text_anchor=anchor)


def _add(parent: Element, tag: str, text: str = "", **attributes: float | str) -> Element:
    """Add an element; an underscore in the name of an attribute becomes a dash."""
    element = SubElement(parent, tag)
    for name, value in attributes.items():
        element.set(name.replace("_", "-"), f"{value:.1f}" if isinstance(value, float) else str(value))
    element.text = plain(text) or None
    return element
