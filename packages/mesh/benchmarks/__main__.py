"""Speed, accuracy and false alarms of the mesh watch.

    online_boutique  a real mesh with injected faults, compared with static thresholds and other baselines
    churn            a simulated day in which pods are replaced all the time, against static thresholds
    incident         the whole step in quiet time, and in an incident with 5 % of the series out
    injections       faults injected into normal hours, at one false incident a day: what neighbours add
    table            all detectors on online_boutique, churn, unkind meshes and injections, in one table
    end_to_end       simulated mesh, Prometheus, the watch, Alertmanager, webhook: each fault, one incident
    memory           a week of snapshots

    python -m packages.mesh.benchmarks [--quick] [--phases a,b] [--data FOLDER]

Prints the results; the last line is one JSON
object. A result that could not be measured is null, and `failed` gives the reason. Run it on an idle
machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.phases import chosen, run_modules

PHASES = ("online_boutique", "churn", "injections", "incident", "end_to_end", "memory", "table")
#: What runs by default; `table` has all of `injections`.
_USUAL = tuple(phase for phase in PHASES if phase != "injections")


def main(usual: Sequence[str] = _USUAL) -> int:
    """Returns: 0, or 1 if a phase failed.

    Args:
        usual: phases that run where the command line names none.
    """
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--quick", action="store_true", help="a shorter run of a few minutes")
    parser.add_argument("--phases", default="", help="phases to run, comma-separated")
    parser.add_argument(
        "--data",
        type=Path,
        help="folder that contains mesh/online-boutique-2022-08-22; same as HOPLINE_DATA",
    )
    args = parser.parse_args()
    wanted = chosen(parser, args.phases or ",".join(usual), PHASES)
    if args.data is not None:
        if not args.data.is_dir():
            parser.error(f"--data: no such folder: {args.data}")
        os.environ["HOPLINE_DATA"] = str(args.data)
    return run_modules("packages.mesh.benchmarks", wanted, PHASES, _show, quick=args.quick)


def _show(name: str, value: Any) -> None:
    """Print one line per result; results per detector are printed as a table."""
    if not isinstance(value, dict):
        print(f"  {name:<60} {value}", flush=True)
        return
    if value and all(isinstance(inner, dict) and "found" in inner for inner in value.values()):
        _table(name, value)
        return
    for key, inner in value.items():
        _show(f"{name}.{key}", inner)


def _table(name: str, rows: dict[str, dict[str, Any]]) -> None:
    columns = (
        "found",
        "events",
        "false_episodes",
        "minutes_to_detect",
        "root_cause_top1",
        "root_cause_top3",
    )
    print(f"  {name:<44}" + "".join(f"{column:>19}" for column in columns))
    for key, row in rows.items():
        print(f"    {key:<42}" + "".join(f"{row[column]!s:>19}" for column in columns), flush=True)


if __name__ == "__main__":
    sys.exit(main())
