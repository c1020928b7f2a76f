"""Draws the report of `hopline drift show`: tables, bars, and a line of blocks for each hour's scores."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hopline.commands.screen import whole

_STYLES = {"ok": "green", "watch": "yellow", "alert": "bold red"}
_BLOCKS = " ▁▂▃▄▅▆▇█"
_BAR_WIDTH = 10
_HOURS = 24


def overview(report: Any) -> RenderableType:
    """A table with one line for each version."""
    table = Table(title="Drift", title_justify="left")
    for column in ("model", "version", "level", "requests", "largest drift", "psi", ""):
        table.add_column(column, justify="right" if column in ("requests", "psi") else "left")
    for version in report["versions"]:
        most = version["most"] or {"kind": "", "name": "", "excess": 0.0}
        state = version["level"] if version["state"] == "watching" else "collecting"
        table.add_row(
            Text(version["model"]),
            Text(version["version"]),
            Text(state, _STYLES.get(state, "dim")),
            f"{version['window']['requests']:,}"
            if state != "collecting"
            else f"{version['collected_rows']:,}",
            Text(f"{most['kind']} {most['name']}".strip()),
            f"{most['excess']:.3f}" if version["most"] else "",
            bar(most["excess"], report["thresholds"]) if version["most"] else "",
        )
    return whole(table, "model", "version")


def version_screen(version: Any, thresholds: Any, rows: int) -> RenderableType:
    """The details of one version."""
    parts: list[RenderableType] = [_quantities(version, thresholds, rows)]
    if version["hours"]:
        parts.append(_hours(version["hours"][-_HOURS:]))
    return Group(*parts)


def bar(excess: float, thresholds: Any) -> Text:
    """The index as a bar that is full at twice the alert threshold, coloured by level."""
    share = min(1.0, excess / (2 * thresholds["alert"])) if thresholds["alert"] else 1.0
    level = "alert" if excess > thresholds["alert"] else "watch" if excess > thresholds["watch"] else "ok"
    full = round(share * _BAR_WIDTH)
    return Text("█" * full, _STYLES[level]).append("·" * (_BAR_WIDTH - full), "dim")


def sparkline(shares: list[float]) -> str:
    """One block for each share; the largest one is a full block."""
    top = max(shares, default=0.0) or 1.0
    return "".join(_BLOCKS[max(share > 0, round(share / top * (len(_BLOCKS) - 1)))] for share in shares)


def _quantities(version: Any, thresholds: Any, rows: int) -> RenderableType:
    name = f"{version['model']}/{version['version']}"
    reference = version["reference"]
    if reference is None:
        return Text(f"{name}: collecting a reference, {version['collected_rows']:,} rows so far")
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(reference["made"]))
    title = (
        f"{name}: {version['level']}, {version['window']['requests']:,} requests against "
        f"{reference['requests']:,} of {reference['source']}, {made}"
    )
    table = Table(title=Text(title), title_justify="left")
    for column in ("kind", "name", "level", "psi", "", "largest change", "was", "is"):
        table.add_column(column, justify="right" if column in ("psi", "was", "is") else "left")
    for each in version["quantities"][:rows]:
        at = each["bins"].index(each["bin"]) if each["bin"] else None
        table.add_row(
            each["kind"],
            Text(each["name"]),
            Text(each["level"], _STYLES[each["level"]]),
            f"{each['excess']:.3f}",
            bar(each["excess"], thresholds),
            Text(each["bin"]),
            "" if at is None else f"{each['reference_shares'][at]:.1%}",
            "" if at is None else f"{each['shares'][at]:.1%}",
        )
    hidden = len(version["quantities"]) - rows
    if hidden > 0:
        table.caption = f"{hidden} more with less drift"
    return whole(table, "kind", "name")


def _hours(hours: list[Any]) -> RenderableType:
    table = Table(title="Scores by the hour", title_justify="left")
    for column in ("hour", "requests", "mean", "from low to high"):
        table.add_column(column, justify="right" if column in ("requests", "mean") else "left")
    for hour in hours:
        table.add_row(
            time.strftime("%a %H:00", time.localtime(hour["start"])),
            f"{hour['requests']:,}",
            "" if hour["mean"] is None else f"{hour['mean']:.3f}",
            sparkline(hour["shares"][:-1]),  # without the bin of missing values
        )
    return table
