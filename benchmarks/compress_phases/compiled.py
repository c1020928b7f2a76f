"""A model that cannot be split, compiled at packaging time against the same model run eagerly by torch.

The model is two attention layers and a mean over the seed's ego-graph, which no split survives; fanouts 10
and 5 on a drawn graph. Both are one artifact, served with `compute.compiled` auto and never, on one thread:

    latency_ratio             whole requests over HTTP, one node each: compiled over eager, of medians
    latency_ratio_model       the model's call alone, on the same ego-graphs
    latency_ratio_pyg         the model's call over the PyG module itself, in eval mode without gradients
    first_over_tenth          first request of a process that has just become ready, over the median of its
                              requests 5 to 10, all after equal pauses, since a processor that was idle is
                              slower: medians over fresh processes
    first_over_tenth_cpu      the same in processor time of the event loop, which neighbours disturb less
    fourth_over_tenth         the fourth request instead: how far such a median is off by chance
    compile_s, package_s      what compiling took, and packaging as a whole

Both sides take turns in one run, request by request. `benchmarks.gpu` has the same model on a GPU.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.server_process import ServerFailed, free_port, stop
from hopline.artifact import read_spec
from hopline.engine.ego import EgoModel
from hopline.graph import Graph
from hopline.runtimes.placement import Placement, UseCompiled, place_models
from hopline.types import AnyArray, IdArray

_FEATURES, _HIDDEN, _CLASSES = 64, 64, 8
_FANOUTS = (10, 5)
#: Before each of the first requests: as long as the first one waits after the look that found it ready.
_PAUSE_S = 0.05


def measure(quick: bool) -> dict[str, Any]:
    """`compile`: the figures of the module docstring."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        graph, seeds = drawn(place, 20_000 if quick else 200_000)
        found = packaged(place, graph)
        found |= calls(place, graph, seeds[:100], 3 if quick else 20)
        found |= requests(place, seeds, 300 if quick else 3000)
        found |= firsts(place, seeds, 15 if quick else 30)
        return {"compile": found}


def drawn(place: Path, num_nodes: int) -> tuple[Graph, IdArray]:
    """A graph of ten edges a node, and nodes in it with all ten in-neighbours that are sampled."""
    rng = np.random.default_rng(6)
    edges = rng.integers(0, num_nodes, (2, 10 * num_nodes))
    graph = Graph.from_edges(
        (edges[0], edges[1]), rng.normal(size=(num_nodes, _FEATURES)).astype(np.float32)
    )
    graph.save(place / "graph")
    degrees = np.bincount(edges[1], minlength=num_nodes)
    seeds = np.flatnonzero(degrees >= _FANOUTS[0])
    rng.shuffle(seeds)
    return graph, seeds


def module() -> Any:
    """The model, with weights from one seed."""
    import torch
    from torch_geometric.nn import GATConv

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(6)
            self.first = GATConv(_FEATURES, _HIDDEN // 4, heads=4)
            self.second = GATConv(_HIDDEN, _HIDDEN // 4, heads=4)
            self.out = torch.nn.Linear(_HIDDEN, _CLASSES)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            h = self.first(x, edge_index).relu()
            h = self.second(h, edge_index).relu()
            return self.out(h.mean(0, keepdim=True))

    return Pooled().eval()


def packaged(place: Path, graph: Graph) -> dict[str, Any]:
    """compile_s, package_s, max_abs_diff."""
    from hopline import package
    from hopline.runtimes.torch_compiled import read_record

    report = package(
        module(),
        graph,
        place / "models",
        name="pooled",
        fanouts=list(_FANOUTS),
        task="multiclass",
        runtime="torch",
        compile=True,
    )
    record = read_record(report.path)
    if record is None:
        raise RuntimeError(f"not compiled: {report.notes}")
    return {
        "compile_s": record.seconds,
        "package_s": round(report.seconds, 1),
        "max_abs_diff": record.max_abs_diff,
    }


def calls(place: Path, graph: Graph, seeds: IdArray, rounds: int) -> dict[str, Any]:
    """Medians of the model's call, and of sampling plus call, by who runs it."""
    import torch

    torch.set_num_threads(1)
    folder = place / "models" / "pooled" / "1"
    models = {}
    policies: dict[str, UseCompiled] = {"compiled": "require", "eager": "never"}
    for name, policy in policies.items():
        place_models(Placement(compiled=policy))
        models[name] = EgoModel(folder, read_spec(folder), graph)
    place_models(Placement())
    whole = module()
    seconds: dict[str, list[float]] = {"compiled": [], "eager": [], "pyg": []}
    row = np.zeros(1, np.int64)

    def pyg(slots: Mapping[str, AnyArray]) -> None:
        with torch.no_grad():
            whole(*(torch.from_numpy(np.ascontiguousarray(array)) for array in slots.values())).numpy()

    ways: dict[str, Callable[[Mapping[str, AnyArray]], Any]] = {
        "compiled": lambda slots: models["compiled"]._whole.run_slots(slots, row),
        "eager": lambda slots: models["eager"]._whole.run_slots(slots, row),
        "pyg": pyg,
    }
    for turn in range(rounds + 1):
        for seed in seeds.tolist():
            slots = models["eager"]._slots("node", seed, np.iinfo(np.int64).max)
            for name, run in ways.items():
                began = time.perf_counter()
                run(slots)
                if turn:  # the first round warms up
                    seconds[name].append(time.perf_counter() - began)
    taken = {name: median(values) for name, values in seconds.items()}
    return {
        "latency_ratio_model": round(taken["compiled"] / taken["eager"], 3),
        "latency_ratio_pyg": round(taken["compiled"] / taken["pyg"], 3),
        **{f"model_{name}_us": round(value * 1e6, 1) for name, value in taken.items()},
    }


def requests(place: Path, seeds: IdArray, count: int) -> dict[str, Any]:
    """latency_ratio: two servers, asked in turns."""
    seconds: dict[str, list[float]] = {"compiled": [], "eager": []}
    ports = {name: free_port() for name in seconds}
    with (
        serving(place, ports["compiled"], "require") as one,
        serving(place, ports["eager"], "never") as other,
    ):
        for node in np.resize(seeds, count + 50).tolist():
            for name, connection in (("compiled", one), ("eager", other)):
                seconds[name].append(ask(connection, node))
    taken = {name: median(values[50:]) for name, values in seconds.items()}
    return {
        "latency_ratio": round(taken["compiled"] / taken["eager"], 3),
        **{f"request_{name}_us": round(value * 1e6, 1) for name, value in taken.items()},
    }


def firsts(place: Path, seeds: IdArray, processes: int) -> dict[str, Any]:
    """first_over_tenth, in time and in processor time: medians of fresh processes, other nodes in each."""
    ratios, cpu_ratios, controls, first_us, later_us = [], [], [], [], []
    for i in range(processes):
        port = free_port()
        taken, cpu = [], []
        with serving(place, port, "require") as connection:
            for node in seeds[20 * i : 20 * i + 10].tolist():
                time.sleep(_PAUSE_S)
                began = _on_cpu(connection)
                taken.append(ask(connection, node))
                cpu.append(_on_cpu(connection) - began)
        later = median(taken[4:])
        ratios.append(taken[0] / later)
        controls.append(taken[3] / later)
        cpu_ratios.append(cpu[0] / median(cpu[4:]))
        first_us.append(taken[0] * 1e6)
        later_us.append(later * 1e6)
    return {
        "first_over_tenth": round(median(ratios), 3),
        "first_over_tenth_cpu": round(median(cpu_ratios), 3),
        "fourth_over_tenth": round(median(controls), 3),
        "first_over_tenth_each": [round(ratio, 2) for ratio in ratios],
        "first_over_tenth_cpu_each": [round(ratio, 2) for ratio in cpu_ratios],
        "first_request_us": round(median(first_us), 1),
        "tenth_request_us": round(median(later_us), 1),
    }


@contextlib.contextmanager
def serving(place: Path, port: int, compiled: str) -> Iterator[http.client.HTTPConnection]:
    """One worker that says it is ready and was asked for no score, and a connection to it."""
    command = [
        *(sys.executable, "-m", "hopline.cli", "serve", "--graph", str(place / "graph")),
        *("--repository", str(place / "models"), "--port", str(port), "--grpc-port", "-1"),
        *("--set", f"compute.compiled={compiled}", "--set", "server.spin_us=0"),
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        end = time.monotonic() + 120
        while not _ready(connection):
            if process.poll() is not None or time.monotonic() > end:
                raise ServerFailed(f"not ready: {process.poll()}")
            time.sleep(_PAUSE_S)
        connection.served_by = process.pid  # type: ignore[attr-defined]
        yield connection
    finally:
        connection.close()
        stop(process)


def _on_cpu(connection: http.client.HTTPConnection) -> int:
    """Nanoseconds that the server's event loop has run (proc(5), schedstat)."""
    pid = connection.served_by  # type: ignore[attr-defined]
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def _ready(connection: http.client.HTTPConnection) -> bool:
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        answer.read()
    except OSError:
        connection.close()
        return False
    return answer.status == 200


def ask(connection: http.client.HTTPConnection, node: int) -> float:
    """Seconds of one request."""
    body = json.dumps({"nodes": [node]})
    began = time.perf_counter()
    connection.request("POST", "/v1/models/pooled/score", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    taken = time.perf_counter() - began
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}: {content[:200]!r}")
    return taken
