"""CUDA graphs of whole models: ego-graphs padded to a few fixed sizes, each recorded once.

A small program on a GPU spends its time on launching kernels. A CUDA graph launches all of them together,
but for fixed shapes and addresses only. So there is a list of sizes: size r holds up to r - 1 nodes of each
type and 2 r edges of each type. An ego-graph is padded up to its size with nodes that no request reads, and
edges that only connect those. All sizes are recorded while the model is loaded; a larger ego-graph runs
without a recording.

A model that pools its graph or normalises over it would read the padding. Before anything is recorded,
padded answers are compared with unpadded ones, and a model whose answers differ is not padded.

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
#: Padded and plain answers may differ by the order of sums.
_TOLERANCE = 1e-4
#: Nodes and edges of the generated graphs on which they are compared. Programs may demand at least two of
#: each (`engine.ego` adds them where they are missing).
_TRIALS = ((3, 2), (5, 4), (40, 70))
#: Runs before recording, in which libraries choose their algorithms.
_WARM_RUNS = 3

Program: TypeAlias = Callable[..., Tensor]
#: Records a program on fixed inputs; the result runs it again and returns its output.
Record: TypeAlias = Callable[[Program, Sequence[Tensor]], Callable[[], Tensor]]


def size_for(slots: Sequence[str], tensors: Sequence[Tensor]) -> int | None:
    """The smallest size that holds the tensors; None if the largest one does not."""
    nodes = max(
        (t.shape[0] for n, t in zip(slots, tensors, strict=True) if _role(n) == "features"), default=0
    )
    edges = max(
        (t.shape[1] for n, t in zip(slots, tensors, strict=True) if _role(n) == "edge_index"), default=0
    )
    for size in SIZES:
        if nodes < size and edges <= size * _EDGES_PER_NODE:
            return size
    return None


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


def marks_padding(program: Program, slots: Sequence[str], widths: Sequence[int]) -> bool:
    """True if a program's answers change with the padding; then it must not be padded.

    Args:
        widths: columns of each slot's tensor, 0 for a one-dimensional one (and for edge lists).
    """
    for num_nodes, num_edges in _TRIALS:
        tensors = made_up(slots, widths, num_nodes, num_edges)
        seed = torch.zeros(1, dtype=torch.int64)
        plain = program(seed, *tensors)
        size = size_for(slots, tensors)
        assert size is not None
        filled = program(seed, *padded(slots, tensors, size))
        if not torch.allclose(plain, filled, atol=_TOLERANCE, rtol=_TOLERANCE, equal_nan=True):
            return True
    return False


def made_up(slots: Sequence[str], widths: Sequence[int], num_nodes: int, num_edges: int) -> list[Tensor]:
    """A graph with these numbers of nodes and edges of each type, the same at every call."""
    generator = torch.Generator().manual_seed(num_nodes)
    out = []
    for name, width in zip(slots, widths, strict=True):
        match _role(name):
            case "features":
                out.append(torch.randn(num_nodes, width, generator=generator))
            case "edge_index":
                out.append(torch.randint(0, num_nodes, (2, num_edges), generator=generator))
            case "edge_type":
                out.append(torch.zeros(num_edges, dtype=torch.int64))
            case _:
                shape = (num_edges, width) if width else (num_edges,)
                out.append(torch.rand(shape, generator=generator) + 0.5)
    return out


class RecordedProgram:
    """A program whose small graphs run from recordings.

    Args:
        program: of seed and tensors, on the device of `record`.
        slots: names of the tensors.
        widths: as for `marks_padding`.
        record: creates a recording; `None` records nothing.
        device: where tensors are copied to.

    Attributes:
        recorded: sizes that run from a recording.
    """

    def __init__(
        self,
        program: Program,
        slots: Sequence[str],
        widths: Sequence[int],
        record: Record | None,
        device: str = "cpu",
    ) -> None:
        self._program = program
        self._slots = list(slots)
        self._device = device
        self._sizes: dict[int, tuple[Tensor, list[Tensor], Callable[[], Tensor]]] = {}
        if record is None:
            return
        try:
            if marks_padding(self._on_device, slots, widths):
                log.warning(
                    "the model's answers depend on padding (it pools or normalises): no CUDA graphs"
                )
                return
            for size in reversed(SIZES):  # smaller ones then fit into the memory of the largest
                seed = torch.zeros(1, dtype=torch.int64, device=device)
                inputs = [t.to(device) for t in padded(slots, made_up(slots, widths, 3, 2), size)]
                self._sizes[size] = seed, inputs, record(program, [seed, *inputs])
        except RuntimeError as error:  # an operator that reads a size from the device cannot be recorded
            log.warning("no CUDA graphs: %s", error)
            self._sizes.clear()

    @property
    def recorded(self) -> tuple[int, ...]:
        """Sizes that run from a recording, smallest first."""
        return tuple(sorted(self._sizes))

    def __call__(self, seed: Tensor, *tensors: Tensor) -> Tensor:
        """float32 [1, output_dim] on the processor."""
        size = size_for(self._slots, tensors) if self._sizes else None
        if size is None:
            return self._on_device(seed, *tensors)
        held, inputs, replay = self._sizes[size]
        held.copy_(seed)
        for name, source, target in zip(self._slots, tensors, inputs, strict=True):
            pad_into(name, source, target, size)
        return replay().cpu()

    def _on_device(self, seed: Tensor, *tensors: Tensor) -> Tensor:
        moved = [tensor.to(self._device) for tensor in tensors]
        return self._program(seed.to(self._device), *moved).cpu()


def on_gpu(exported: Any, slots: Sequence[str]) -> RecordedProgram:
    """An exported program on the first GPU, recorded if its answers do not depend on padding.

    Args:
        exported: torch.export.ExportedProgram on the processor.
    """
    from torch.export.passes import move_to_device_pass

    examples = exported.example_inputs[0][1:]
    widths = [
        t.shape[1] if t.dim() == 2 and _role(n) != "edge_index" else 0
        for n, t in zip(slots, examples, strict=True)
    ]
    with torch.no_grad():
        module = move_to_device_pass(exported, "cuda").module()
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        record = partial(record_cuda, stream, torch.cuda.graph_pool_handle())
        return RecordedProgram(module, slots, widths, record, "cuda")


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
