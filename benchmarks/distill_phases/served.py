"""Student against teacher in one server: how long one node takes, and how many nodes a second in lumps.

The graph, features and GraphSAGE (128 → 128 → 64, fanouts 10 and 5) of the serving benchmark, its 64
outputs taken for classes. The student is what `hopline distill` makes by default, which reads a structure
row in addition to the features, but for the number of epochs: what is timed does not depend on how good the
weights are. `plain` is one that reads features alone. One process serves all over HTTP; requests ask for
labels, so that writing numbers as JSON hides nothing. The teacher keeps its state cache, which the first
round warms: its best setting. All are asked in turns on one connection; of the rounds the median counts.
One node a request is asked by wrk, 1,024 by a Python client (`http.client`), the same for all.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks import load, workload
from benchmarks.lifecycle_phases.server import Hopline, hopline
from benchmarks.load import ID, Load, Request

LUMP = 1024
#: Of a student that is timed, not used.
_EPOCHS = 3
_MODELS = ("teacher", "student", "plain")


def measure(quick: bool) -> dict[str, Any]:
    """All models side by side.

    Returns: `latency_ratio` (p50 of one node per request) and `throughput_ratio` (nodes a second at 1,024
        per request), student over teacher: below 1 and above 1 are good; `plain_latency_ratio` and
        `plain_throughput_ratio` of the student without structure; and for each model `p50_ms`, `p99_ms`,
        `cpu_us` (processor time of the server for each request of one node), `lump_ms`, `nodes_per_s`.
    """
    load.require_wrk()
    sizes = workload.SMALL if quick else workload.FULL
    with places(sizes) as (graph, repository), hopline(repository, graph) as server:
        singles = _singles(server, sizes.num_nodes, rounds=4 if quick else 8)
        lumps = _lumps(server, sizes.num_nodes, rounds=12 if quick else 40)
    figures: dict[str, Any] = {}
    for name in _MODELS:
        found = singles[name]
        lump_s = statistics.median(lumps[name])
        figures[name] = {
            "p50_ms": statistics.median(run.p50_ms for run, _ in found),
            "p99_ms": statistics.median(run.p99_ms for run, _ in found),
            "cpu_us": round(
                sum(used for _, used in found) / sum(run.num_requests for run, _ in found) * 1e6, 1
            ),
            "lump_ms": round(lump_s * 1e3, 3),
            "nodes_per_s": round(LUMP / lump_s),
        }
    ratios = {}
    for name, before in (("student", ""), ("plain", "plain_")):
        ratios[f"{before}latency_ratio"] = round(figures[name]["p50_ms"] / figures["teacher"]["p50_ms"], 3)
        ratios[f"{before}throughput_ratio"] = round(
            figures[name]["nodes_per_s"] / figures["teacher"]["nodes_per_s"], 3
        )
    return {
        **ratios,
        "workload": sizes.name,
        "nodes_per_request": [1, LUMP],
        **figures,
    }


@contextmanager
def places(sizes: workload.Sizes) -> Iterator[tuple[Path, Path]]:
    """Graph folder, and a repository with `teacher`, `student` and `plain`."""
    # torch comes with these, and a benchmark without them must not wait for it
    from benchmarks.hopline_server import build
    from hopline.artifact import read_spec, write_spec
    from hopline_compress.distill.run import Distillation, DistillOptions
    from hopline_compress.distill.settings import Settings

    root = workload.ensure(sizes)
    if not (root / "hopline" / "repository" / "sage" / "1" / "model.json").is_file():
        build(root)
    graph = root / "hopline" / "graph"
    with tempfile.TemporaryDirectory(prefix="hopline-served-") as scratch:
        repository = Path(scratch)
        folder = repository / "teacher" / "1"
        shutil.copytree(root / "hopline" / "repository" / "sage" / "1", folder)
        spec = msgspec.structs.replace(read_spec(folder), name="teacher", task="multiclass")
        write_spec(folder, spec)
        for name, structure in (("student", True), ("plain", False)):
            settings = Settings(structure=structure, epochs=_EPOCHS)
            options = DistillOptions(student=name, force=True, settings=settings)
            Distillation(folder, graph, repository, options).run()
        yield graph, repository


def _singles(server: Hopline, num_ids: int, *, rounds: int) -> dict[str, list[tuple[Load, float]]]:
    """wrk's figures and the server's processor seconds of each round but the first, which warms up."""
    found: dict[str, list[tuple[Load, float]]] = {name: [] for name in _MODELS}
    for number in range(-1, rounds):
        for name in _MODELS:
            request = Request(f"/v1/models/{name}/score", f'{{"nodes":[{ID}],"outputs":["label"]}}')
            before_s = cpu_s(server.process.pid)
            run = load.run(
                server.port, request, connections=1, seconds=1.0, num_ids=num_ids, seed=number + 1
            )
            if run.failed:
                raise RuntimeError(f"{name}: requests failed: {run.errors}")
            if number >= 0:
                found[name].append((run, cpu_s(server.process.pid) - before_s))
    return found


def cpu_s(pid: int) -> float:
    """Processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _lumps(server: Hopline, num_ids: int, *, rounds: int) -> dict[str, list[float]]:
    """Seconds of each request of 1,024 distinct nodes; all models are asked for the same ones."""
    rng = np.random.default_rng(7)
    found: dict[str, list[float]] = {name: [] for name in _MODELS}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        for number in range(-4, rounds):
            nodes = rng.choice(num_ids, LUMP, replace=False).tolist()
            body = json.dumps({"nodes": nodes, "outputs": ["label"]}, separators=(",", ":"))
            # a model that is asked later finds the ids in the processor's caches
            for name in (*_MODELS[number % 3 :], *_MODELS[: number % 3]):
                began = time.perf_counter()
                connection.request("POST", f"/v1/models/{name}/score", body)
                answer = connection.getresponse()
                content = answer.read()
                took = time.perf_counter() - began
                if answer.status != 200:
                    raise RuntimeError(f"{name}: {answer.status} {content[:200]!r}")
                if number >= 0:
                    found[name].append(took)
    finally:
        connection.close()
    return found


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="50 k nodes, 1 M edges")
    print(json.dumps(measure(parser.parse_args().quick)))


if __name__ == "__main__":
    main()
