"""The same pass on a GPU: PyTorch for products, one fused kernel for attention, a CUDA graph for each size.

A mesh of n services is padded up to one of few sizes, so that a pass is one replay of what was recorded for
that size: no launch of single kernels, no allocation. The replay also copies inputs and results, through
pinned memory. The call paths' lists are copied only after they changed. Padding rows have empty lists and
change nothing; results are cut to the mesh.

The tensor program itself runs on any device (`device="cpu"` is for tests, with attention in plain PyTorch).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from hopline.errors import ConfigError
from hopline_mesh.model.encoder import Reconstruction
from hopline_mesh.model.graph import BoolArray, Lists, MeshGraph
from hopline_mesh.model.reference import SLOPE
from hopline_mesh.model.shape import ModelShape
from hopline_mesh.model.weights import FloatArray, Weights

#: Sizes kept recorded at a time; a mesh seldom leaves one and comes back.
_KEPT = 4
_SMALLEST = 128
#: Bytes that each tensor begins at a multiple of; cuBLAS and Triton then use wide loads.
_ALIGNED = 256
#: Runs before recording, in which kernels are compiled and libraries choose their algorithms.
_WARM_RUNS = 2


def padded_size(count: int) -> int:
    """The size that so many rows are padded to: a power of two, or half way between two; at least 128."""
    size = _SMALLEST
    while size < count:
        size *= 2
    half_way = size * 3 // 4
    return half_way if count <= half_way and half_way > _SMALLEST else size


def attend_plain(
    source: Tensor, target: Tensor, attention: Tensor, lists: tuple[Tensor, Tensor, Tensor], e: Tensor,
    edge_weight: Tensor, own: Tensor, bias: Tensor, slope: float, out: Tensor,
) -> None:  # fmt: skip
    """`attention_triton.attend` without Triton."""
    indptr, others, edges = (each.to(torch.int64) for each in lists)
    heads, channels = attention.shape
    count = int(indptr[-1])
    heard, named = others[:count], edges[:count]
    listener = torch.repeat_interleave(torch.arange(len(out), device=out.device), indptr.diff())
    rows = source[heard]
    mixed = leaky_relu(rows + target[listener] + e[named] @ edge_weight, SLOPE)
    scores = (mixed.view(-1, heads, channels) * attention).sum(dim=2)
    where = listener[:, None].expand_as(scores)
    highest = torch.full((len(out), heads), -3.0e38, device=out.device)
    highest = highest.scatter_reduce(0, where, scores, "amax")
    shares = (scores - highest[listener]).exp()
    total = torch.zeros(len(out), heads, device=out.device).index_add_(0, listener, shares)
    shares = shares / total[listener]
    message = (rows.view(-1, heads, channels) * shares[:, :, None]).flatten(1)
    sums = torch.zeros_like(out).index_add_(0, listener, message)
    out.copy_(leaky_relu(sums + own + bias, slope))


class _Tensors:
    """Named tensors in one piece of memory, so that one copy moves all of them.

    Args:
        shapes: of each. dtype: of all.
        device: where they are; pinned: whether a GPU can copy them directly.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        dtype: torch.dtype,
        device: torch.device | None = None,
        *,
        pinned: bool = False,
    ) -> None:
        places, end = {}, 0
        for name, shape in shapes.items():
            places[name] = end
            end += -(-prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED // dtype.itemsize
        self.all = torch.zeros(end, dtype=dtype, device=device, pin_memory=pinned)
        self.named = {
            name: self.all[places[name] : places[name] + prod(shape)].view(shape)
            for name, shape in shapes.items()
        }


@dataclass
class _Size:
    """Memory of one padded size, and what computes with it.

    Attributes:
        numbers, lists: inputs on the host.
        results: on the host.
        numbers_on_device, lists_on_device: where inputs go; the recording has their addresses.
        lists_of: the graph that `lists` were written from, and its version.
        run: copies numbers to the device, computes, and copies results back.
    """

    numbers: _Tensors
    lists: _Tensors
    results: _Tensors
    numbers_on_device: _Tensors
    lists_on_device: _Tensors
    lists_of: tuple[MeshGraph | None, int]
    run: Callable[[], None]


class GpuEncoder:
    """`Encoder` on a GPU; same arguments, same results up to rounding. Not thread-safe.

    Kernels are compiled, and the smallest size is recorded, when the encoder is made.

    Args:
        weights: not changed any more.
        device: "cuda", "cuda:1" …, or "cpu" for tests.

    Raises:
        ConfigError: there is no such device, or no Triton.
    """

    def __init__(self, weights: Weights, device: str = "cuda") -> None:
        self.weights, self.shape = weights, weights.shape
        self._device = torch.device(device)
        self._attend: Callable[..., None] = attend_plain
        self._is_cuda = self._device.type == "cuda"
        self._stream: Any = None
        self._pool: Any = None
        if self._is_cuda:
            self._begin_cuda()
        self._weights = {
            name: torch.from_numpy(array).to(self._device) for name, array in weights.arrays.items()
        }
        self._edge_weights = [
            self._weights[f"layers.{layer}.edge.weight"].T.contiguous()
            for layer in range(self.shape.layers)
        ]
        self._sizes: dict[tuple[int, int], _Size] = {}
        if self._is_cuda:
            self._size(_SMALLEST, _SMALLEST)

    def _begin_cuda(self) -> None:
        if not torch.cuda.is_available():
            raise ConfigError(f"device {self._device}: PyTorch finds no CUDA device; use device 'cpu'")
        try:
            from hopline_mesh.model import attention_triton
        except ImportError as error:
            raise ConfigError("the GPU path needs Triton: pip install triton") from error
        self._attend = attention_triton.attend
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def reconstruct(
        self,
        graph: MeshGraph,
        x: FloatArray,
        h: FloatArray,
        e: FloatArray,
        g: FloatArray,
        node_mask: BoolArray | None = None,
    ) -> Reconstruction:
        """As `Encoder.reconstruct`; arrays are valid until the next pass."""
        n, num_edges = graph.num_nodes, graph.num_edges
        size = self._size(padded_size(n), padded_size(num_edges))
        _fill_numbers(size.numbers.named, {"x": x, "h": h, "e": e, "g": g}, n, node_mask)
        is_new = size.lists_of != (graph, graph.version)
        if is_new:
            _fill_lists(size.lists.named, graph)
            size.lists_of = (graph, graph.version)
        with torch.inference_mode():
            if is_new and self._is_cuda:
                size.lists_on_device.all.copy_(size.lists.all, non_blocking=True)
            size.run()
            if self._is_cuda:
                torch.cuda.current_stream(self._device).synchronize()
        found = {name: tensor.numpy() for name, tensor in size.results.named.items()}
        return Reconstruction(
            found["z"][:n], found["nodes"][:n], found["edges"][:num_edges], found["links"][:num_edges]
        )

    def _size(self, nodes: int, edges: int) -> _Size:
        """Memory for a padded size; recorded when it is first needed."""
        kept = self._sizes.pop((nodes, edges), None)
        if kept is None:
            if len(self._sizes) >= _KEPT:
                del self._sizes[next(iter(self._sizes))]
            kept = self._new_size(nodes, edges)
        self._sizes[nodes, edges] = kept  # the last one is the most recent
        return kept

    def _new_size(self, nodes: int, edges: int) -> _Size:
        on_gpu, shapes, dtype = self._is_cuda, _shapes(self.shape, nodes, edges), torch.float32
        numbers = _Tensors(shapes.numbers, dtype, pinned=on_gpu)
        lists = _Tensors(shapes.lists, torch.int32, pinned=on_gpu)
        results = _Tensors(shapes.results, dtype, pinned=on_gpu)
        if not on_gpu:
            given = numbers.named | lists.named

            def on_cpu() -> None:
                for name, tensor in self._program(given).items():
                    results.named[name].copy_(tensor)

            return _Size(numbers, lists, results, numbers, lists, (None, 0), on_cpu)
        there = _Tensors(shapes.numbers, dtype, self._device)
        lists_there = _Tensors(shapes.lists, torch.int32, self._device)
        given = there.named | lists_there.named

        def compute() -> None:
            there.all.copy_(numbers.all, non_blocking=True)
            for name, tensor in self._program(given).items():
                results.named[name].copy_(tensor, non_blocking=True)

        with torch.inference_mode(), torch.cuda.device(self._device):
            replay = _recorded(compute, self._stream, self._pool)
        return _Size(numbers, lists, results, there, lists_there, (None, 0), replay)

    def _program(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """The pass on tensors of one size."""
        shape, weights, h = self.shape, self._weights, given["h"]
        state = given["x"]
        for layer, listens in enumerate(shape.listens):
            at = f"layers.{layer}."
            source = torch.addmm(weights[at + "source.bias"], state, weights[at + "source.weight"].T)
            target = source
            if not shape.shared:
                target = torch.addmm(weights[at + "target.bias"], state, weights[at + "target.weight"].T)
            target = torch.addmm(target, h, weights[at + "temporal.weight"].T)
            own = state
            if layer == 0:
                own = h @ weights["own_temporal.weight"].T
                if shape.own_inputs:
                    own = torch.addmm(own, state, weights["own.weight"].T)
            e = given["e"] if layer < shape.edge_layers else given["e"][:, :0].contiguous()
            lists = tuple(given[f"{listens}.{what}"] for what in ("indptr", "others", "edges"))
            state = torch.empty_like(target)
            self._attend(
                source, target, weights[at + "attention"], lists, e, self._edge_weights[layer],
                own, weights[at + "bias"], 1.0 if layer + 1 == shape.layers else SLOPE, state,
            )  # fmt: skip
        z = torch.addmm(weights["out.bias"], state, weights["out.weight"].T) * given["shown"]
        inner = leaky_relu(
            torch.addmm(weights["nodes.hidden.bias"], z, weights["nodes.hidden.weight"].T), SLOPE
        )
        sources, targets = given["sources"], given["targets"]
        hidden = (z @ weights["edges.caller.weight"].T)[sources]
        hidden = hidden + (z @ weights["edges.callee.weight"].T)[targets] + weights["edges.hidden.bias"]
        hidden = leaky_relu(torch.addmm(hidden, given["g"], weights["edges.temporal.weight"].T), SLOPE)
        return {
            "z": z,
            "nodes": torch.addmm(weights["nodes.out.bias"], inner, weights["nodes.out.weight"].T),
            "edges": torch.addmm(weights["edges.out.bias"], hidden, weights["edges.out.weight"].T),
            "links": ((z @ weights["link.weight"])[sources] * z[targets]).sum(1) + weights["link.bias"],
        }


def _recorded(compute: Callable[[], None], stream: Any, pool: Any) -> Callable[[], None]:
    """A function recorded as a CUDA graph; the result runs it again.

    Args:
        stream: to record on; cuBLAS keeps 32 MiB for every stream.
        pool: memory that recordings share which never run at the same time.
    """
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_RUNS):
            compute()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Other threads of the process may use the GPU meanwhile.
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        compute()
    return graph.replay


@dataclass(frozen=True)
class _Shapes:
    numbers: dict[str, tuple[int, ...]]
    lists: dict[str, tuple[int, ...]]
    results: dict[str, tuple[int, ...]]


def _shapes(shape: ModelShape, nodes: int, edges: int) -> _Shapes:
    numbers: dict[str, tuple[int, ...]] = {
        "x": (nodes, shape.d_in),
        "h": (nodes, shape.d_temporal),
        "e": (edges, shape.d_edge),
        "g": (edges, shape.d_edge_temporal),
        "shown": (nodes, 1),
    }
    lists: dict[str, tuple[int, ...]] = {"sources": (edges,), "targets": (edges,)}
    for side in ("callers", "callees"):
        lists |= {f"{side}.indptr": (nodes + 1,), f"{side}.others": (edges,), f"{side}.edges": (edges,)}
    results: dict[str, tuple[int, ...]] = {
        "z": (nodes, shape.d_out),
        "nodes": (nodes, shape.n_node_targets),
        "edges": (edges, shape.n_edge_targets),
        "links": (edges,),
    }
    return _Shapes(numbers, lists, results)


def _fill_numbers(
    host: dict[str, Tensor], inputs: dict[str, FloatArray], n: int, node_mask: BoolArray | None
) -> None:
    for name, array in inputs.items():
        host[name].numpy()[: len(array)] = array
    shown = host["shown"].numpy()
    shown[:n, 0] = 1 if node_mask is None else node_mask
    shown[n:] = 0


def _fill_lists(host: dict[str, Tensor], graph: MeshGraph) -> None:
    """Write a mesh's call paths; padding rows get empty lists."""
    n, num_edges = graph.num_nodes, graph.num_edges
    for side, lists in (("callers", graph.callers), ("callees", graph.callees)):
        _fill_side(host, side, lists, n)
    for name, ends in (("sources", graph.sources), ("targets", graph.targets)):
        host[name].numpy()[:num_edges] = ends
        host[name].numpy()[num_edges:] = 0


def _fill_side(host: dict[str, Tensor], side: str, lists: Lists, n: int) -> None:
    indptr = host[f"{side}.indptr"].numpy()
    indptr[: n + 1] = lists.indptr[: n + 1]
    count = int(lists.indptr[n])
    indptr[n + 1 :] = count
    host[f"{side}.others"].numpy()[:count] = lists.others[:count]
    host[f"{side}.edges"].numpy()[:count] = lists.edges[:count]


__all__ = ["GpuEncoder", "attend_plain", "padded_size"]
