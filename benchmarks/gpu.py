"""The engine on a GPU and on the CPU of the same machine. Needs CUDA, and onnxruntime-gpu.

    python -m benchmarks.gpu [--parts split,stage,zoo,serve] [--place FOLDER] [--quick]

    split   models in stages: ONNX Runtime's CUDA provider and its CPU provider, sampling included, at 1, 32
            and 1,024 nodes; and PyG on the same GPU, on ego-graphs sampled before
    stage   one stage alone, by rows of a call; `bound`: over memory of the GPU that stays bound
    zoo     `benchmarks.zoo` with models loaded on the GPU: are answers the module's own?
    serve   a server with `compute.device=cuda`: answers, and a version loaded while requests run

Medians of wall time. Prints lines as it goes; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import commit, machine
from hopline.artifact import read_spec
from hopline.engine.model import load_model
from hopline.graph import Graph
from hopline.runtimes import onnx
from hopline.runtimes.ort import ort
from hopline.runtimes.placement import place_models
from hopline.types import AnyArray, FloatArray, IdArray

PARTS = ("split", "stage", "zoo", "serve")
BATCHES = (1, 32, 1024)
_FANOUTS = [10, 5]
_FEATURES, _CLASSES = 64, 8
#: Ending of the name of a package whose attention a GPU computes.
_FOR_GPU = "_for_gpu"


def models() -> dict[str, Any]:
    """Name -> module."""
    from torch_geometric.nn import GAT, GraphSAGE

    torch.manual_seed(6)
    return {
        "sage_64": GraphSAGE(_FEATURES, 64, 2, _CLASSES),
        "sage_1024": GraphSAGE(_FEATURES, 1024, 2, _CLASSES),
        "gat_64": GAT(_FEATURES, 64, 2, _CLASSES, heads=4, v2=True),
        "gat_512": GAT(_FEATURES, 512, 2, _CLASSES, heads=4, v2=True),
    }


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


def prepare(place: Path, num_nodes: int) -> tuple[Graph, IdArray]:
    """The graph, some nodes of it, and a package of each model, in a folder that may have them."""
    from hopline import package

    shutil.rmtree(place / "graph", ignore_errors=True)
    graph, seeds = drawn(place, num_nodes)
    for name, each in models().items():
        if not (place / "models" / name).exists():
            package(each.eval(), graph, place / "models", name=name, fanouts=_FANOUTS, task="multiclass")
        if name.startswith("gat") and not (place / "models" / f"{name}{_FOR_GPU}").exists():
            package(
                each.eval(), graph, place / "models", name=f"{name}{_FOR_GPU}", fanouts=_FANOUTS,
                task="multiclass", device="cuda",
            )  # fmt: skip
    return graph, seeds


def loaded(place: Path, name: str, graph: Graph, device: Any, threads: int = 1) -> Any:
    """A model on a device."""
    place_models(device)
    for_gpu = place / "models" / f"{name}{_FOR_GPU}" / "1"
    folder = for_gpu if device != "cpu" and for_gpu.exists() else place / "models" / name / "1"
    spec = read_spec(folder)
    try:
        return load_model(folder, spec, graph, threads=threads)
    finally:
        place_models("cpu")


def in_turns(ways: Mapping[str, Callable[[int], object]], count: int) -> dict[str, float]:
    """Median milliseconds of each, called in turns after some calls that warm up."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    warm = 1 + count // 5
    for i in range(-warm, count):
        for name, call in ways.items():
            began = time.perf_counter()
            call(i)
            if i >= 0:
                taken[name].append(time.perf_counter() - began)
    return {name: round(1e3 * float(np.median(each)), 4) for name, each in taken.items()}


def split(place: Path, graph: Graph, seeds: IdArray, quick: bool) -> Iterator[tuple[str, Any]]:
    """By model."""
    for name, peer in models().items():
        began = time.perf_counter()
        gpu = loaded(place, name, graph, "cuda")
        found: dict[str, Any] = {"load_s": round(time.perf_counter() - began, 2)}
        one, eight = (loaded(place, name, graph, "cpu", threads) for threads in (1, 8))
        peer = peer.eval().to("cuda")
        for size in BATCHES:
            batches = [seeds[i * size : (i + 1) * size] for i in range(8)]
            joined = [_joined(graph, batch) for batch in batches[: 2 if size > 100 else 8]]
            ask = [{"node": batch} for batch in batches]
            differ = [
                np.abs(gpu.final_states(each)["node"] - one.final_states(each)["node"]).max()
                for each in ask
            ]
            scale = float(np.abs(one.final_states(ask[0])["node"]).max())

            def on_peer(i: int) -> None:
                x, edge_index, rows = joined[i % len(joined)]  # noqa: B023
                with torch.no_grad():
                    out = peer(torch.from_numpy(x).cuda(), torch.from_numpy(edge_index).cuda())  # noqa: B023
                    out[torch.from_numpy(rows).cuda()].cpu()

            ways: dict[str, Callable[[int], object]] = {
                "gpu_ms": lambda i: gpu.final_states(ask[i % 8]),  # noqa: B023
                "cpu_1_ms": lambda i: one.final_states(ask[i % 8]),  # noqa: B023
                "cpu_8_ms": lambda i: eight.final_states(ask[i % 8]),  # noqa: B023
                "pyg_gpu_ms": on_peer,
            }
            count = 10 if size > 100 or quick else 60
            found[str(size)] = in_turns(ways, count) | {"max_diff": float(max(differ)), "largest": scale}
        yield name, found


def _joined(graph: Graph, seeds: IdArray) -> tuple[AnyArray, AnyArray, IdArray]:
    """Features and edges of the sampled ego-graphs of nodes, side by side, and the row of each node."""
    (adjacency,) = graph.edges.values()
    rng, ids, starts = np.random.default_rng(7), list[int](), list[int]()
    edges: list[tuple[int, int]] = []
    for seed in seeds.tolist():
        rows, frontier, start = {seed: 0}, [seed], len(ids)
        for fanout in _FANOUTS:
            found: list[int] = []
            for node in frontier:
                near = adjacency.indices[adjacency.indptr[node] : adjacency.indptr[node + 1]]
                for other in rng.permutation(near)[:fanout].tolist():
                    if other not in rows:
                        rows[other] = len(rows)
                        found.append(other)
                    edges.append((start + rows[other], start + rows[node]))
            frontier = found
        starts.append(start)
        ids += rows
    features = np.asarray(graph.nodes["node"].features[np.array(ids)], np.float32)
    return features, np.array(edges).T.copy(), np.array(starts)


def stage(place: Path, graph: Graph, seeds: IdArray, quick: bool) -> Iterator[tuple[str, Any]]:
    """By model, rows of a call, and device."""
    for name in ("sage_64", "sage_1024"):
        folder = place / "models" / name / "1"
        stages = [each for level in read_spec(folder).levels for each in level.values()]
        each = next(each for each in stages if each.file is not None)
        path = folder / str(each.file)
        (taken,) = onnx.session(path).get_inputs()
        name_in, width = taken.name, taken.shape[1]
        found: dict[str, float] = {}
        for rows in (1, 32, 256, 4096):
            runs: dict[str, Callable[[int], FloatArray]] = {}
            inputs = [
                np.random.default_rng(i).normal(size=(rows, width)).astype(np.float32) for i in (0, 1)
            ]
            expected: list[FloatArray] = []
            for device in ("cpu", "cuda"):
                place_models(device)
                chunk = onnx.CHUNK_ROWS
                onnx.CHUNK_ROWS = max(chunk, rows)
                try:
                    run = onnx.RowStage(path, [name_in], [width], "h", each.state_dim)
                finally:
                    onnx.CHUNK_ROWS = chunk
                    place_models("cpu")

                def ask(
                    i: int, run: onnx.RowStage = run, inputs: Any = inputs, rows: int = rows
                ) -> FloatArray:
                    run.inputs[0][:rows] = inputs[i % 2]  # a stale answer would show
                    return run.run(rows)

                runs[f"{rows}_{device}_ms"] = ask
                if device == "cpu":
                    expected = [ask(i).copy() for i in (0, 1)]
            bound = _bound(run, name_in, inputs, rows)
            runs[f"{rows}_bound_ms"] = bound
            for key, call in (("cuda", runs[f"{rows}_cuda_ms"]), ("bound", bound)):
                found[f"{rows}_{key}_diff"] = max(
                    float(np.abs(call(i) - expected[i % 2]).max()) for i in range(4)
                )
            found |= in_turns(runs, 30 if quick else 200)
        yield name, found


def _bound(
    run: onnx.RowStage, name: str, inputs: list[FloatArray], rows: int
) -> Callable[[int], FloatArray]:
    """The same call over memory of the GPU that stays bound; inputs are copied into it before each run."""
    binding = run._session.io_binding()
    there = ort.OrtValue.ortvalue_from_shape_and_type(inputs[0].shape, np.float32, "cuda", 0)
    out = run.output[:rows]
    binding.bind_ortvalue_input(name, there)
    binding.bind_ortvalue_output("h", ort.OrtValue.ortvalue_from_numpy(out))

    def call(i: int) -> FloatArray:
        there.update_inplace(inputs[i % 2])
        run._session.run_with_iobinding(binding)
        return out

    return call


def zoo(
    place: Path, graph: Graph, seeds: IdArray, quick: bool, shard: tuple[int, int]
) -> Iterator[tuple[str, Any]]:
    """Outcomes by kind, and what was not right; packaged on the CPU, loaded on the GPU."""
    from benchmarks.zoo_phases import convs, entry, graphs, verdict
    from benchmarks.zoo_phases import models as model_table

    def on_gpu(*args: Any) -> Any:
        place_models("cuda")
        try:
            return load_model(*args)
        finally:
            place_models("cpu")

    vars(verdict)["load_model"] = on_gpu
    entries = [
        (entry.describe(name, each), each)
        for table in (convs.TABLE, model_table.TABLE)
        for name, of in table.items()
        for each in (of[:1] if quick else of)
    ]
    folder = place / f"zoo{shard[0]}"
    for number, (name, each) in enumerate(entries):
        if number % shard[1] != shard[0]:
            continue
        on = graphs.zoo_graph(each.graph, folder)
        torch.manual_seed(number)
        made = entry.draw_weights(each.make(), number)
        arguments = on.arguments(made)
        expected = verdict.ask_module(made, arguments)
        if isinstance(expected, dict):
            expected = expected[each.target]

        def rounding(made: Any = made, arguments: Any = arguments, expected: Any = expected) -> float:
            exact = verdict.ask_module(made, arguments, dtype=torch.float64)
            return float((exact - expected).abs().max())

        asked = on.seeds(each.target, 60).tolist()
        served = verdict.ServedGraph(on.graph, expected, asked, asked[:10], rounding)
        found = verdict.judge(
            made, on.graph, folder / "models", [served], fanouts=each.layers, task="multiclass",
            target=each.target, **each.options,
        )  # fmt: skip
        yield name, (found.kind, found.max_diff, " ".join(found.why.split())[:400])


def serve(place: Path, graph: Graph, seeds: IdArray, quick: bool) -> Iterator[tuple[str, Any]]:
    """Two workers over HTTP: answers as the engine's on the CPU, and a load while requests run."""
    import subprocess
    import sys
    import threading
    import urllib.request

    from benchmarks.server_process import free_port, stop

    repository = place / "served"
    for name in ("sage_64", "gat_64"):
        if not (repository / name).exists():
            shutil.copytree(place / "models" / name, repository / name)
    port = free_port()
    command = [
        *(sys.executable, "-m", "hopline.cli", "serve", "--graph", str(place / "graph")),
        *("--repository", str(repository), "--port", str(port), "--grpc-port", "-1"),
        *("--set", "compute.device=cuda", "--set", "server.workers=2"),
    ]
    log = (place / "serve.log").open("w")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    url = f"http://127.0.0.1:{port}"

    def ask(path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
            return json.loads(content) if content else None

    try:
        began = time.perf_counter()
        while True:
            try:
                ask("/readyz")
                break
            except OSError as error:
                if process.poll() is not None or time.perf_counter() - began > 120:
                    yield "not_ready", f"{process.poll()} {error}"
                    return
                time.sleep(0.2)
        yield "ready_s", round(time.perf_counter() - began, 1)
        for name in ("sage_64", "gat_64"):
            cpu = loaded(place, name, graph, "cpu")
            for other in (seeds[20:40], seeds[:20]):  # the second answer is of other nodes than the first
                nodes = other.tolist()
                answer = ask(f"/v1/models/{name}/score", {"nodes": nodes})
            states = cpu.final_states({"node": seeds[:20]})["node"]
            shares = np.exp(states - states.max(1, keepdims=True))
            shares /= shares.sum(1, keepdims=True)
            found = np.array(answer["outputs"]["probabilities"])
            yield f"{name}_max_diff", float(np.abs(found - shares).max())
        errors: list[str] = []
        done, ends = [0], threading.Event()

        def load(name: str) -> None:
            rng = np.random.default_rng(threading.get_ident() % 1000)
            while not ends.is_set():
                try:
                    ask(f"/v1/models/{name}/score", {"nodes": rng.choice(seeds, 300).tolist()})
                    done[0] += 1
                except Exception as error:  # every kind is counted
                    errors.append(f"{error} {getattr(error, 'read', lambda: b'')()[:200]!r}")

        threads = [threading.Thread(target=load, args=(name,)) for name in ("sage_64", "gat_64") * 3]
        for thread in threads:
            thread.start()
        for version in ("2", "3", "4"):
            shutil.copytree(repository / "gat_64" / "1", repository / "gat_64" / version)
            try:
                ask("/v2/repository/models/gat_64/load", {})
            except OSError as error:
                errors.append(f"load: {error} {getattr(error, 'read', lambda: b'')()[:300]!r}")
            time.sleep(1)
        ends.set()
        for thread in threads:
            thread.join()
        yield "while_loading", {"answers": done[0], "errors": len(errors), "first": errors[:3]}
    finally:
        stop(process)
        yield "log", (place / "serve.log").read_text()[-3000:]


def main() -> None:
    """Run the parts."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--place", type=Path, help="where graph and models are written, or are already")
    parser.add_argument("--shard", default="0/1", help="of the zoo: number/of")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = args.place or Path(scratch)
        found: dict[str, Any] = {"torch": torch.__version__}
        wanted = args.parts.split(",")
        graph, seeds = None, None
        if wanted != ["zoo"]:
            graph, seeds = prepare(place, 20_000 if args.quick else 200_000)
        all_of: dict[str, Any] = {
            "split": split,
            "stage": stage,
            "zoo": zoo,
            "serve": serve,
        }
        for part in wanted:
            found[part] = {}
            more = {"shard": tuple(map(int, args.shard.split("/")))} if part == "zoo" else {}
            for key, value in all_of[part](place, graph, seeds, args.quick, **more):
                found[part][key] = value
                print(f"{part} {key}: {value}", flush=True)
    print(json.dumps(found | {"machine": machine(), "commit": commit()}))


if __name__ == "__main__":
    main()
