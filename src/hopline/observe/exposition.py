"""The Prometheus text format, version 0.0.4 (prometheus.io, "Exposition formats")."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """One line of a family: suffix of the name, label pairs and value."""

    suffix: str
    labels: tuple[tuple[str, str], ...]
    value: float


def render_family(name: str, help: str, kind: str, samples: Iterable[Sample]) -> str:
    """Return the lines of one family, with HELP and TYPE."""
    lines = [f"# HELP {name} {_escape_help(help)}\n# TYPE {name} {kind}\n"]
    for suffix, labels, value in samples:
        pairs = ",".join(f'{key}="{_escape_label(text)}"' for key, text in labels)
        lines.append(
            f"{name}{suffix}{{{pairs}}} {_number(value)}\n"
            if pairs
            else f"{name}{suffix} {_number(value)}\n"
        )
    return "".join(lines)


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escape_label(text: str) -> str:
    return _escape_help(text).replace('"', '\\"')
