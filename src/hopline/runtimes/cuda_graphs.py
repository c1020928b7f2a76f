"""CUDA graphs of whole models: ego-graphs padded to a few fixed sizes, each recorded once.

A small program on a GPU spends its time on launching kernels. A CUDA graph launches all of them together,
but for fixed shapes and addresses only. So there is a list of sizes: size r holds up to r - 1 nodes of each
type and 2 r edges of each type. An ego-graph is padded up to its size with nodes that no request reads, and
edges that only connect those. All sizes are recorded while the model is loaded; a larger ego-graph runs
without a recording.

Packaging has checked that nodes which no edge joins to the seed do not change its answer.

Recordings of one program share memory, since only one of them runs at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

log = logging.getLogger(__name__)

#: Nodes of each type for each size, padding included; most ego-graphs have a few hundred.
SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048)
_EDGES_PER_NODE = 2
#: Runs before recording, in which libraries choose their algorithms.
_WARM_RUNS = 3

Program: TypeAlias = Callable[..., Tensor]
#: Records a program on fixed inputs; the result runs it again and returns its output.
Record: TypeAlias = Callable[[Program, Sequence[Tensor]], Callable[[], Tensor]]


def size_for(slots: Sequence[str], tensors: Sequence[Tensor]) -> int | None:
    """The smallest size that holds the tensors; None if the largest one does not."""
    nodes = edges = 0
    for name, each in zip(slots, tensors, strict=True):
        nodes = max(nodes, len(each) if _role(name) == "features" else 0)
        edges = max(edges, each.shape[1] if _role(name) == "edge_index" else 0)
    fitting = (size for size in SIZES if nodes < size and edges <= size * _EDGES_PER_NODE)
    return next(fitting, None)


def padded_shape(slot: str, example: Tensor, size: int) -> tuple[int, ...]:
    """The shape of a slot's tensor for a size."""
    edges = size * _EDGES_PER_NODE
    match _role(slot):
        case "features":
            return (size, *example.shape[1:])
        case "edge_index":
            return (2, edges)
        case _:
            return (edges, *example.shape[1:])


def pad_into(slot: str, source: Tensor, target: Tensor, size: int) -> None:
    """Fill a tensor of the padded shape.

    Nodes beyond the real ones are zero. Edges beyond the real ones lead from the last node, which is never
    a real one, to itself, with weight one (a degree of zero would be a divisor) and attributes and type
    zero.
    """
    if _role(slot) == "edge_index":
        count = source.shape[1]
        target[:, :count].copy_(source, non_blocking=True)
        target[:, count:].fill_(size - 1)
        return
    count = source.shape[0]
    target[:count].copy_(source, non_blocking=True)
    target[count:].fill_(1 if _role(slot) == "edge_weight" else 0)


def padded(slots: Sequence[str], tensors: Sequence[Tensor], size: int) -> list[Tensor]:
    """New tensors of the shapes of a size."""
    out = []
    for name, tensor in zip(slots, tensors, strict=True):
        target = tensor.new_empty(padded_shape(name, tensor, size))
        pad_into(name, tensor, target, size)
        out.append(target)
    return out


class RecordedProgram:
    """A program whose small graphs run from recordings.

    Args:
        program: of seed and tensors, on the device of `record`.
        slots: names of the tensors.
        examples: a tensor of each slot.
        record: creates a recording; `None` records nothing.
        device: where tensors are copied to.

    Attributes:
        recorded: size that runs from a recording -> seed and inputs of it, and how it runs.
    """

    def __init__(
        self,
        program: Program,
        slots: Sequence[str],
        examples: Sequence[Tensor],
        record: Record | None,
        device: str = "cpu",
    ) -> None:
        self._program = program
        self._slots = list(slots)
        self._device = device
        self.recorded: dict[int, tuple[Tensor, list[Tensor], Callable[[], Tensor]]] = {}
        if record is None:
            return
        named = zip(slots, examples, strict=True)
        empty = [each[:, :0] if _role(name) == "edge_index" else each[:0] for name, each in named]
        try:
            for size in reversed(SIZES):  # smaller ones then fit into the memory of the largest
                seed = torch.zeros(1, dtype=torch.int64, device=device)
                inputs = [t.to(device) for t in padded(slots, empty, size)]
                self.recorded[size] = seed, inputs, record(program, [seed, *inputs])
        except RuntimeError as error:  # an operator that reads a size from the device cannot be recorded
            log.warning("no CUDA graphs: %s", error)
            self.recorded.clear()

    def __call__(self, seed: Tensor, *tensors: Tensor) -> Tensor:
        """float32 [1, output_dim] on the processor."""
        size = size_for(self._slots, tensors) if self.recorded else None
        if size is None:
            return self._on_device(seed, *tensors)
        held, inputs, replay = self.recorded[size]
        held.copy_(seed)
        for name, source, target in zip(self._slots, tensors, inputs, strict=True):
            pad_into(name, source, target, size)
        return replay().cpu()

    def _on_device(self, seed: Tensor, *tensors: Tensor) -> Tensor:
        moved = [tensor.to(self._device) for tensor in tensors]
        return self._program(seed.to(self._device), *moved).cpu()


def on_gpu(exported: Any, slots: Sequence[str]) -> RecordedProgram:
    """An exported program on the first GPU, recorded if it can be.

    Args:
        exported: torch.export.ExportedProgram on the processor.
    """
    from torch.export.passes import move_to_device_pass

    with torch.no_grad():
        module = move_to_device_pass(exported, "cuda").module()
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        record = partial(record_cuda, stream, torch.cuda.graph_pool_handle())
        return RecordedProgram(module, slots, exported.example_inputs[0][1:], record, "cuda")


def record_cuda(stream: Any, pool: Any, program: Program, inputs: Sequence[Tensor]) -> Callable[[], Tensor]:
    """Record a program as a CUDA graph (docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs).

    Args:
        stream: to record on; cuBLAS keeps 32 MiB for every stream.
        pool: memory that recordings share which never run at the same time.
    """
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(_WARM_RUNS):
            program(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Other threads serve meanwhile: what they allocate must not end the recording.
    with (
        torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        torch.no_grad(),
    ):
        out = program(*inputs)

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


def _role(slot: str) -> str:
    return slot.partition(":")[0]
