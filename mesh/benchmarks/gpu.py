"""The graph model on a GPU and on the CPU of the same machine. Needs CUDA and Triton.

    python -m mesh.benchmarks.gpu [--parts pass,ways,kernel,step] [--nodes N] [--quick]

    pass    one pass of the encoder with its decoders, host to host: GPU, CPU, differences from the CPU's
            float32 pass, what making the encoder and the first pass of a size take, and memory of the GPU
    ways    the same pass, run in other ways: launched operator by operator, as a CUDA graph, by
            torch.compile; attention in PyTorch's operators or as the Triton kernel; with and without TF32
    kernel  the Triton kernel alone, by entries of a block and warps; bytes it must move over the time
    step    `Tagae.step` on both devices, quiet and with 5 % of the services far off

Two sizes of model: `usual` is the one that the detector trains (2 heads of 16), `large` has 4 heads of 32.
Medians of wall time, each pass or step waited for. Prints lines as it goes; the last is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from benchmarks.machine import commit, machine
from hopline_mesh.changes import Context
from hopline_mesh.model import attention_triton, gpu
from hopline_mesh.model.encoder import Encoder
from hopline_mesh.model.gpu import GpuEncoder
from hopline_mesh.model.graph import MeshGraph
from hopline_mesh.model.reference import SLOPE
from hopline_mesh.model.shape import ModelShape
from hopline_mesh.model.weights import Weights
from hopline_mesh.snapshot import Snapshot
from hopline_mesh.tagae import Tagae, TagaeSettings, expect
from mesh.benchmarks.latency import Stream, edges_of

SIZES: tuple[tuple[int, int], ...] = ((100, 400), (500, 2000), (2000, 20_000), (20_000, 200_000))
#: As `expect.shape_for` the usual columns has them.
SHAPES = {
    "usual": ModelShape(14, 7, 8, 7, 4, 32, 2, d_out=16, d_edge_temporal=4, own_inputs=False),
    "large": ModelShape(14, 7, 8, 7, 4, d_edge_temporal=4, own_inputs=False),
}
PARTS = ("pass", "ways", "kernel", "step")


def p50_ms(call: Callable[[], object], count: int, warm: int = 5) -> float:
    """The median duration of a call."""
    taken = []
    for i in range(-warm, count):
        began = time.perf_counter()
        call()
        if i >= 0:
            taken.append(time.perf_counter() - began)
    return round(1e3 * float(np.median(taken)), 4)


def drawn(shape: ModelShape, n: int, e: int) -> tuple[MeshGraph, list[np.ndarray]]:
    """A mesh, and x, h, e and g."""
    rng, graph = np.random.default_rng(0), MeshGraph()
    graph.update(n, *edges_of(n, e, rng))
    sizes = ((n, shape.d_in), (n, shape.d_temporal), (e, shape.d_edge), (e, shape.d_edge_temporal))
    return graph, [rng.normal(size=size).astype(np.float32) for size in sizes]


def passes(quick: bool) -> Iterator[tuple[str, Any]]:
    """By "model/nodes/edges"."""
    for name, shape in SHAPES.items():
        weights = Weights.initial(shape)
        for n, e in SIZES:
            graph, given = drawn(shape, n, e)
            count = 20 if quick or n > 10_000 else 200
            exact = [a.copy() for a in Encoder(weights, bfloat16=False).reconstruct(graph, *given)]
            found: dict[str, Any] = {}
            torch.cuda.empty_cache()
            before, began = torch.cuda.memory_reserved(), time.perf_counter()
            encoder = GpuEncoder(weights)
            made_s, began = time.perf_counter() - began, time.perf_counter()
            answers = encoder.reconstruct(graph, *given)
            first_s = time.perf_counter() - began
            found["make_ms"], found["first_ms"] = (round(1e3 * each, 1) for each in (made_s, first_s))
            found["max_diff"] = max(
                float(np.abs(a - b).max(initial=0)) for a, b in zip(answers, exact, strict=True)
            )
            found["gpu_p50_ms"] = p50_ms(lambda: encoder.reconstruct(graph, *given), count)  # noqa: B023
            size = list(encoder._sizes.values())[-1]

            def replay() -> None:
                size.run()  # noqa: B023
                torch.cuda.synchronize()

            found["replay_p50_ms"] = p50_ms(replay, count)
            found["gpu_reserved_mb"] = round((torch.cuda.memory_reserved() - before) / 1e6, 1)
            found["pinned_mb"] = round(
                sum(t.all.nbytes for t in (size.numbers, size.lists, size.results)) / 1e6, 2
            )
            for threads in (1, 2):
                ours = Encoder(weights, threads=threads)
                key = f"cpu_{threads}_p50_ms"
                found[key] = p50_ms(lambda: ours.reconstruct(graph, *given), count)  # noqa: B023
            yield f"{name}/{n}/{e}", found


def attend_static(
    source: Tensor, target: Tensor, attention: Tensor, lists: tuple[Tensor, Tensor, Tensor], e: Tensor,
    edge_weight: Tensor, own: Tensor, bias: Tensor, slope: float, out: Tensor,
) -> None:  # fmt: skip
    """`gpu.attend_plain` with shapes that do not depend on the data, so that it can be recorded."""
    indptr, others, edges = lists
    n, (heads, channels) = len(out), attention.shape
    entry = torch.arange(len(others), device=out.device, dtype=torch.int32)
    listener = torch.searchsorted(indptr[1:].contiguous(), entry, right=True)
    there, listener = (listener < n)[:, None], listener.clamp(max=n - 1)
    rows = source[others]
    mixed = leaky_relu(rows + target[listener] + e[edges] @ edge_weight, SLOPE)
    scores = (mixed.view(-1, heads, channels) * attention).sum(dim=2)
    scores = torch.where(there, scores, -3.0e38)
    where = listener[:, None].expand_as(scores)
    highest = torch.full((n, heads), -3.0e38, device=out.device).scatter_reduce(0, where, scores, "amax")
    shares = torch.where(there, (scores - highest[listener]).exp(), 0.0)
    total = torch.zeros(n, heads, device=out.device).index_add_(0, listener, shares).clamp_min(1e-30)
    message = (rows.view(-1, heads, channels) * (shares / total[listener])[:, :, None]).flatten(1)
    sums = torch.zeros_like(out).index_add_(0, listener, message)
    out.copy_(leaky_relu(sums + own + bias, slope))


def one_way(
    weights: Weights, graph: MeshGraph, given: list[np.ndarray], *, how: str, attend: Any, tf32: bool
) -> tuple[Callable[[], None], gpu._Tensors]:
    """A pass from pinned inputs to pinned results."""
    encoder = GpuEncoder(weights)
    encoder._attend = attend
    n, e = graph.num_nodes, graph.num_edges
    shapes = gpu._shapes(weights.shape, gpu.padded_size(n), gpu.padded_size(e))
    numbers, there = (
        gpu._Tensors(shapes.numbers, torch.float32, pinned=True),
        gpu._Tensors(shapes.numbers, torch.float32, torch.device("cuda")),
    )
    lists, lists_there = (
        gpu._Tensors(shapes.lists, torch.int32, pinned=True),
        gpu._Tensors(shapes.lists, torch.int32, torch.device("cuda")),
    )
    results = gpu._Tensors(shapes.results, torch.float32, pinned=True)
    gpu._fill_numbers(numbers.named, dict(zip("xheg", given, strict=True)), n, None)
    gpu._fill_lists(lists.named, graph)
    lists_there.all.copy_(lists.all)
    inputs = there.named | lists_there.named
    program: Any = encoder._program
    if how.startswith("torch.compile"):
        program = torch.compile(program, mode="reduce-overhead", dynamic=False)

    def compute() -> None:
        there.all.copy_(numbers.all, non_blocking=True)
        for name, tensor in program(inputs).items():
            results.named[name].copy_(tensor, non_blocking=True)

    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        run = gpu._recorded(compute, stream, pool) if how == "CUDA graph" else compute
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False

    def waited() -> None:
        with torch.no_grad():
            run()
            torch.cuda.synchronize()

    waited.kept = compute  # type: ignore[attr-defined]  # the recording has its tensors' addresses
    return waited, results


def ways(quick: bool) -> Iterator[tuple[str, Any]]:
    """By "model/nodes/edges"."""
    kernels = {"Triton": attention_triton.attend, "PyTorch": attend_static}
    for name, shape in SHAPES.items():
        weights = Weights.initial(shape)
        for n, e in SIZES[2:]:
            graph, given = drawn(shape, n, e)
            found: dict[str, Any] = {}
            first: gpu._Tensors | None = None
            for how in ("operator by operator", "CUDA graph", "torch.compile"):
                for kernel, attend in kernels.items():
                    if how == "torch.compile" and kernel == "PyTorch":
                        continue  # its answers differed by up to 14 (torch 2.11, H100)
                    for tf32 in (False, True) if (how, kernel) == ("CUDA graph", "Triton") else (False,):
                        key = f"{how}, {kernel}, {'TF32' if tf32 else 'float32'}"
                        torch._dynamo.reset()
                        began = time.perf_counter()
                        try:
                            run, results = one_way(weights, graph, given, how=how, attend=attend, tf32=tf32)
                            run()
                            seconds = time.perf_counter() - began
                            row: dict[str, Any] = {
                                "p50_ms": p50_ms(run, 20 if quick else 100),
                                "first_s": round(seconds, 2),
                            }
                            row["max_diff"] = (
                                0.0 if first is None else float((results.all - first.all).abs().max())
                            )
                            first = first or results
                        except Exception as error:  # a way that does not work is a result
                            row = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
                        found[key] = row
                        print(f"    {name}/{n}/{e} {key}: {row}", flush=True)
            yield f"{name}/{n}/{e}", found


def kernel(quick: bool) -> Iterator[tuple[str, Any]]:
    """By "model/nodes/edges"; the first layer, which reads `e`."""
    from triton.testing import do_bench

    copied = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(copied)
    ms = do_bench(lambda: target.copy_(copied), return_mode="median")
    yield "copy_gb_s", round(2 * copied.nbytes / ms / 1e6)
    copied = target = torch.empty(0)
    for name, shape in SHAPES.items():
        for n, e in SIZES[2:]:
            graph, given = drawn(shape, n, e)
            width, heads = shape.hidden, shape.heads
            tensor = lambda *size: torch.randn(size, device="cuda")  # noqa: E731
            source, target, own = tensor(n, width), tensor(n, width), tensor(n, width)
            edge, weight = torch.from_numpy(given[2]).cuda(), tensor(shape.d_edge, width)
            attention, bias, out = tensor(heads, width // heads), tensor(width), torch.empty_like(own)
            indptr, others, edges = graph.callers
            parts = (indptr[: n + 1], others[:e], edges[:e])
            lists = tuple(torch.from_numpy(np.ascontiguousarray(part)).cuda() for part in parts)
            # each input once, the result once; and one source row for each entry
            least = 4 * (4 * n * width + e * shape.d_edge + 2 * e + n)
            gathered = least + 4 * width * (e - n)
            found: dict[str, Any] = {"least_mb": least / 1e6, "with_gathered_mb": gathered / 1e6}
            chosen = attention_triton.BLOCK, attention_triton.WARPS
            for block, warps in ((16, 1), (16, 2), (16, 4), (32, 1), (32, 2), (32, 4), (32, 8), (64, 4)):
                attention_triton.BLOCK, attention_triton.WARPS = block, warps
                args: Any = (source, target, attention, lists, edge, weight, own, bias, SLOPE, out)
                try:
                    ms = do_bench(lambda: attention_triton.attend(*args), return_mode="median")  # noqa: B023
                except Exception as error:  # too many registers, say
                    found[f"{block}x{warps}"] = f"{type(error).__name__}: {str(error)[:100]}"
                    continue
                found[f"{block}x{warps}"] = {
                    "us": round(1e3 * ms, 1),
                    "gathered_gb_s": round(gathered / ms / 1e6),
                    "least_gb_s": round(least / ms / 1e6),
                }
            attention_triton.BLOCK, attention_triton.WARPS = chosen
            yield f"{name}/{n}/{e}", found


def step(quick: bool) -> Iterator[tuple[str, Any]]:
    """By "model/nodes/edges": quiet, and with 5 % of the services far off."""
    for n, e in SIZES:
        stream = Stream(n, e)
        learnt = 120 if n < 10_000 else 40
        tagae = Tagae(TagaeSettings(model="untrained"))
        tagae.fit([next(stream) for _ in range(learnt)], [Context()] * learnt)
        for table in tagae._tables:
            table.gain[:] = 0.0  # wrong expectations of random weights must not make every step an incident
        meta, arrays = tagae.export()
        off = np.random.default_rng(1).choice(n, max(1, n // 20), replace=False)
        count = 20 if quick or n > 10_000 else 100
        quiet = [next(stream) for _ in range(count)]
        loud = [_disturbed(next(stream), off) for _ in range(6 if n > 10_000 else count)]
        for name in list(SHAPES)[: 1 if n > 10_000 else 2]:
            found: dict[str, Any] = {}
            states: dict[str, list[str]] = {}
            for device in ("cpu", "cuda"):
                settings = TagaeSettings(model="untrained", device=device)
                detector = Tagae.restore(json.loads(json.dumps(meta)), arrays, settings)
                if name == "large":
                    shape = expect.shape_for(
                        detector._nodes, detector._edges, hidden=128, heads=4, d_out=32
                    )
                    detector._expectation = expect.Expectation(Weights.initial(shape), device=device)
                states[device] = []
                for what, snapshots in (("quiet", quiet), ("incident", loud)):
                    taken = []
                    for snapshot in snapshots:
                        began = time.perf_counter()
                        verdict = detector.step(snapshot, Context())
                        taken.append(time.perf_counter() - began)
                        states[device].append(verdict.state)
                    found[f"{device}_{what}_p50_ms"] = round(1e3 * float(np.median(taken[2:])), 3)
                    found[f"{device}_{what}_first_ms"] = round(1e3 * taken[0], 1)
            same = [a == b for a, b in zip(states["cpu"], states["cuda"], strict=True)]
            found["same_states"] = round(sum(same) / len(same), 3)
            yield f"{name}/{n}/{e}", found


def _disturbed(snapshot: Snapshot, off: np.ndarray) -> Snapshot:
    features = snapshot.node_features.copy()
    features[off] *= 10
    return replace(snapshot, node_features=features)


def main() -> None:
    """Run the parts."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--nodes", type=int, help="only the size of so many services")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA device")
    if args.nodes is not None:
        global SIZES
        SIZES = tuple(size for size in SIZES if size[0] == args.nodes)
    all_of = {"pass": passes, "ways": ways, "kernel": kernel, "step": step}
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for part in args.parts.split(","):
        found[part] = {}
        for key, value in all_of[part](args.quick):
            found[part][key] = value
            print(f"{part} {key}: {value}", flush=True)
    print(json.dumps(found | {"machine": machine(), "commit": commit()}))


if __name__ == "__main__":
    main()
