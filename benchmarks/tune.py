"""Try a peer's settings one at a time: how the arguments in `benchmarks.peers` were chosen.

    python -m benchmarks.tune "triton_pyg 32 --queue-delay-us 5000" "triton_pyg 32 --threads 2"

Each argument is a peer, a number of connections and the peer's own arguments.
Run it on a quiet machine: the servers that spin or have several processes lose
half their throughput to one busy neighbour on two cores.
"""

from __future__ import annotations

import argparse
import os

from benchmarks import load, model_workload, workload
from benchmarks.peers import PEERS
from benchmarks.server_process import ServerFailed
from benchmarks.serving import make_bench, measure_peer_once


def main() -> None:
    """Measure each trial and print one line for it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trials", nargs="+", metavar="'PEER CONNECTIONS [ARG ...]'")
    parser.add_argument("--model", choices=tuple(model_workload.MODELS), default="sage")
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    load.require_wrk()
    bench = make_bench(args.model, workload.FULL, args.seconds, warmup_seconds=1.0)
    for trial in args.trials:
        name, connections, *extra = trial.split()
        try:
            run = measure_peer_once(bench, PEERS[name], int(connections), tuple(extra))
        except ServerFailed as error:
            print(f"{trial}: {error}")
            continue
        print(
            f"{trial}: {run.rps:,.0f} req/s, p50 {run.p50_ms:.2f} ms, p99 {run.p99_ms:.2f} ms"
            f"{', FAILED' if run.failed else ''} (load average {os.getloadavg()[0]:.1f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
