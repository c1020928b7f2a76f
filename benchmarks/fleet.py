"""A fleet of several hosts on this machine.

    rollouts    versions, hosts and the store fail under steady load: requests lost, answers of a version
                that was rolled back more than 2 s before, rollouts that ended in two ways; each host is a
                network namespace
    autoscale   load rises fivefold in 30 s: when the shipped autoscaler asks for pods, when p99 doubles,
                and whether it flaps afterwards; metrics come from a real Prometheus
    snapshot    the next day's graph of 20 M edges (--quick: 2 M), with features and precomputed answers, is
                swapped in from an S3 address (moto) under steady load: requests lost, seconds, disk, memory

    live        hosts follow one stream of changes of the graph: answers of one version that differ, writes
                that were not read

    python -m benchmarks.fleet [--quick] [--phases rollouts,autoscale,snapshot,live]

Prints a table; the last line is one JSON object. Needs root, iproute2, redis-server, haproxy and
prometheus (Debian, Ubuntu: apt-get install redis-server haproxy prometheus).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from benchmarks.phases import chosen, run_modules

PHASES = ("rollouts", "autoscale", "snapshot", "live")
_PROGRAMS = ("ip", "redis-server", "haproxy", "prometheus")
_FIGURES = (
    *("lost", "answered_by_rolled_back_after_2s", "split_decisions"),
    *("autoscale_in_time", "autoscale_flaps"),
    *("snapshot_lost", "snapshot_swap_s", "snapshot_disk_peak_mib", "snapshot_memory_peak_mib"),
    *("live_compared_across_hosts", "live_equal_version_other_bytes", "live_written_and_not_read"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument("--phases", default="", help="names, separated by commas")
    asked = parser.parse_args()
    phases = chosen(parser, asked.phases, PHASES)
    missing = [
        name for name in ("ip", "redis-server", "haproxy", "prometheus") if shutil.which(name) is None
    ]
    if missing or os.geteuid() != 0:
        parser.error(f"needs root, and these programs: {', '.join(missing) or 'all are installed'}")

    def show(name: str, value: object) -> None:
        print(f"  {name:<40}{value!s:>14}", flush=True)

    sys.exit(run_modules("benchmarks.fleet_phases", phases, _FIGURES, show, quick=asked.quick))


if __name__ == "__main__":
    main()
