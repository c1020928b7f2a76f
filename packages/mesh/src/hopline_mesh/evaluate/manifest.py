"""`mesh.toml`: settings of a folder of snapshots. Every key is optional."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopline.toml import parse_toml
from hopline_mesh.evaluate.recording import Period
from hopline_mesh.evaluate.table import Problems
from hopline_mesh.evaluate.times import clock, parse

FILE = "mesh.toml"
_LARGEST = sys.float_info.max
_KEYS = ("name", "interval_s", "train", "test", "cpu_limits")


@dataclass(frozen=True)
class Manifest:
    """The content of `mesh.toml`; None and empty for missing keys.

    Attributes:
        name: for tables.
        interval_s: seconds from one snapshot to the next.
        train: see `Recording`.
        test: see `Recording`.
        cpu_limits: see `Recording`.
    """

    name: str | None = None
    interval_s: float | None = None
    train: tuple[Period, ...] | None = None
    test: tuple[Period, ...] | None = None
    cpu_limits: Mapping[str, float] = field(default_factory=dict)


def read(folder: Path, problems: Problems) -> Manifest:
    """Read the manifest of a folder; an empty one if the file is missing."""
    try:
        found = parse_toml((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Manifest()
    except OSError as error:
        problems.add(FILE, f"cannot be read: {error.strerror}")
        return Manifest()
    except ValueError as error:  # or not UTF-8
        problems.add(FILE, f"is not valid TOML: {error}")
        return Manifest()
    for key in sorted(set(found) - set(_KEYS)):
        problems.add(f"{FILE}, {key}", f"unknown key; allowed are {', '.join(_KEYS)}")
    name = found.get("name")
    if name is not None and not isinstance(name, str):
        problems.add(f"{FILE}, name", f"{name!r} is not text")
        name = None
    interval_s = found.get("interval_s")
    if interval_s is not None and not _positive(interval_s):
        problems.add(f"{FILE}, interval_s", f"{interval_s!r} is not a number above 0")
        interval_s = None
    limits = found.get("cpu_limits", {})
    if not isinstance(limits, dict) or not all(_positive(value) for value in limits.values()):
        problems.add(f"{FILE}, cpu_limits", "must be a table of service = cores, each above 0")
        limits = {}
    return Manifest(
        name=name,
        interval_s=None if interval_s is None else float(interval_s),
        train=_periods(found, "train", problems),
        test=_periods(found, "test", problems),
        cpu_limits={service: float(cores) for service, cores in limits.items()},
    )


def write(folder: Path, manifest: Manifest) -> None:
    """Write `mesh.toml` with the known keys."""
    values: dict[str, Any] = {"name": manifest.name, "interval_s": manifest.interval_s}
    for key, periods in (("train", manifest.train), ("test", manifest.test)):
        values[key] = periods and [[period.start_s, period.end_s] for period in periods]
    lines = [f"{key} = {_toml(value)}" for key, value in values.items() if value is not None]
    if manifest.cpu_limits:
        lines.append("\n[cpu_limits]")
        lines += [f"{_toml(name)} = {_toml(cores)}" for name, cores in manifest.cpu_limits.items()]
    (folder / FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _periods(found: dict[str, Any], key: str, problems: Problems) -> tuple[Period, ...] | None:
    if key not in found:
        return None
    value = found[key]
    periods: list[Period] = []
    for pair in value if isinstance(value, list) else [value]:
        match [parse(str(end)) for end in pair] if isinstance(pair, list) else pair:
            case [float(start_s), float(end_s)] if start_s < end_s:
                if periods and start_s < periods[-1].end_s:
                    problems.add(
                        f"{FILE}, {key}",
                        f"the period from {clock(start_s)} begins before the previous one ends, "
                        f"{clock(periods[-1].end_s)}; put them in order",
                    )
                periods.append(Period(start_s, end_s))
            case _:
                shown = [str(end) for end in pair] if isinstance(pair, list) else pair
                problems.add(
                    f"{FILE}, {key}",
                    f"{shown!r} is not a period; it must be [[start, end], ...], with start before end",
                )
    return tuple(periods)


def _positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= _LARGEST


def _toml(value: object) -> str:
    """Return text, a number or a list as TOML; JSON's forms are valid in it."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
