"""Benchmarks of several phases: figures by name, and phases that could not be measured."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.machine import commit, machine, stolen_s


class PhaseReport:
    """Collects the figures of a benchmark's phases and prints them.

    Args:
        names: of figures in the JSON line; null until they are measured.

    Attributes:
        figures: by their names in the JSON line.
        failed: phase -> why it has no figures.
        stolen_s: phase -> seconds of the processors that a hypervisor gave to others meanwhile.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.figures: dict[str, Any] = dict.fromkeys(names)
        self.failed: dict[str, str] = {}
        self.stolen_s: dict[str, float] = {}

    def attempt(self, phase: str, measure: Callable[[], None]) -> None:
        """Run a phase; its failure is a line of the report, and the others still count."""
        began, stolen_before = time.perf_counter(), stolen_s()
        print(phase, flush=True)
        try:
            measure()
        except Exception as error:  # the boundary of a phase
            self.failed[phase] = f"{type(error).__name__}: {error}"
            print(f"  failed: {self.failed[phase]}", flush=True)
        self.stolen_s[phase] = stolen = round(stolen_s() - stolen_before, 2)
        took = f"{time.perf_counter() - began:.0f} s"
        told = took if stolen < 0.1 else f"{took}; {stolen} s of the processors were given to others"
        print(f"    ({told})", file=sys.stderr, flush=True)

    def last_line(self, config: dict[str, Any], at_start: dict[str, Any]) -> str:
        """All figures and what they are of, as one JSON object.

        Args:
            config: of this run. at_start: `machine()` before it.
        """
        ran = {"failed": self.failed, "stolen_s": self.stolen_s, "config": config}
        return json.dumps(self.figures | ran | {"machine": at_start, "commit": commit()})


def chosen(parser: argparse.ArgumentParser, phases: str, known: Sequence[str]) -> list[str]:
    """The phases that `--phases` names; all where it names none."""
    wanted = [phase for phase in phases.split(",") if phase] or list(known)
    if unknown := set(wanted) - set(known):
        parser.error(f"unknown phases: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return wanted


def run_modules(
    package: str,
    wanted: Sequence[str],
    figures: Iterable[str],
    show: Callable[[str, Any], None],
    *,
    quick: bool,
) -> int:
    """Run phases that are modules with a `measure(quick)`; the last line printed is one JSON object.

    Args:
        package: of the modules. figures: names in the JSON line.
        show: prints a figure.

    Returns: 0, or 1 if a phase failed.
    """
    if (busy := os.getloadavg()[0]) > 0.5:
        print(f"load average {busy:.1f}: other programs will disturb the figures", file=sys.stderr)
    at_start = machine()
    report = PhaseReport(figures)
    for phase in wanted:

        def measure(phase: str = phase) -> None:
            found: dict[str, Any] = importlib.import_module(f"{package}.{phase}").measure(quick)
            report.figures.update(found)
            for name, value in found.items():
                show(name, value)

        report.attempt(phase, measure)
    config = {"quick": quick, "phases": wanted}
    print(report.last_line(config, at_start))
    return 1 if report.failed else 0
