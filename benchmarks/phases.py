"""What a benchmark of several phases finds: figures by name, and phases that could not be measured."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any


class PhaseReport:
    """Args:
    names: of figures in the JSON line; null until they are measured.

    Attributes:
        figures: by their names in the JSON line.
        failed: phase -> why it has no figures.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.figures: dict[str, Any] = dict.fromkeys(names)
        self.failed: dict[str, str] = {}

    def attempt(self, phase: str, measure: Callable[[], None]) -> None:
        """Run a phase; its failure is a line of the report, and the others still count."""
        began = time.perf_counter()
        print(phase, flush=True)
        try:
            measure()
        except Exception as error:  # the boundary of a phase
            self.failed[phase] = f"{type(error).__name__}: {error}"
            print(f"  failed: {self.failed[phase]}", flush=True)
        print(f"    ({time.perf_counter() - began:.0f} s)", file=sys.stderr, flush=True)
