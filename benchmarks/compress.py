"""Smaller and faster: what narrow weights, features and lists cost and give; how soon a process answers.

    int8       a quantised model against the one it was made of: size, accuracy, time
    features   features in int8 and in 16 bits against float32: memory, gathering, accuracy
    adjacency  packed neighbour lists against plain ones: size, sampling
    cold       from a new process to its first answer: the server, and the handler of function platforms

    python -m benchmarks.compress [--quick] [--phases a,b]

Both sides of a ratio are timed in turns in the same run. Prints figures; the last line is one JSON object.
A figure that could not be had is null, and `failed` says why. Wants a quiet machine.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from benchmarks.phases import chosen, run_modules

FIGURES = ("int8", "int8_features", "adjacency", "cold_start_s", "function_cold_start_s")
PHASES = ("int8", "features", "adjacency", "cold")


def main() -> int:
    """Run the command. Returns 0, or 1 if a phase failed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--quick", action="store_true", help="some five minutes in all")
    parser.add_argument("--phases", default="", help="comma-separated; default all")
    args = parser.parse_args()
    wanted = chosen(parser, args.phases, PHASES)
    return run_modules("benchmarks.compress_phases", wanted, FIGURES, _show, quick=args.quick)


def _show(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        print(f"  {name:<40}{value}", flush=True)
        return
    for key, inner in value.items():
        _show(f"{name}.{key}", inner)


if __name__ == "__main__":
    sys.exit(main())
