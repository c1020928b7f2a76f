"""Compiles a whole model with AOTInductor, once, while it is packaged: machine code next to the program.

Numbers of nodes and edges stay dynamic. The code is compared with the eager program on graphs of several
shapes, down to one node and no edge, before it is written; code that differs is not written. This module
calls the compiler; `runtimes/torch_compiled.py` decides what may load the result.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from hopline.artifact import ModelSpec
from hopline.errors import PackagingError, ParityError
from hopline.packaging import parity
from hopline.packaging.arguments import Binding
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.export import quiet
from hopline.runtimes.torch_compiled import FILE, RECORD_FILE, CompiledProgram, CompiledRecord, Machine
from hopline.runtimes.whole_file import read_slots

log = logging.getLogger("hopline.packaging")

#: One thread: an ego-graph is too small to share, and sums that threads add up atomically would not be
#: equal from one call to the next. Line tables name files of this machine and are two thirds of the size.
_OPTIONS: dict[str, Any] = {
    "cpp.threads": 1,
    "compile_threads": 1,
    "aot_inductor.enable_line_tables": False,
    "aot_inductor.enable_frame_pointer": False,
}
#: Nodes and edges (of each type) of the graphs that are compared.
_SHAPES = ((1, 0), (1, 1), (2, 0), (2, 1), (5, 3), (17, 40), (61, 120), (256, 1500))


def check_compiler() -> str:
    """The C++ compiler that will be called.

    Raises:
        PackagingError: no compiler; the message says how to install one.
    """
    asked = os.environ.get("CXX", "")
    command = shlex.split(asked)[0] if asked.split() else ""
    for name in [command] if command else ["g++", "clang++"]:
        if shutil.which(name):
            return name
    problem = f"CXX is {asked!r}, which is not on PATH" if command else "neither g++ nor clang++ is on PATH"
    raise PackagingError(
        f"--compile needs a C++ compiler, and {problem}: install one (Debian: apt-get install g++), or "
        "package without --compile; machines that only serve do not need it"
    )


def compile_whole(
    folder: Path, program_file: str, slots: Sequence[str], binding: Binding, check: CheckGraph, target: str
) -> CompiledRecord:
    """Compile the exported program in `folder` and write code and record next to it.

    Args:
        slots: of the program, in its order.
        check: graph that the compared shapes are cut from.
        target: node type of the seed.

    Raises:
        PackagingError: no compiler, AOTInductor refuses the program, or its code answers differently
            (the message says which); nothing was written.
    """
    check_compiler()
    path = folder / FILE
    began = time.perf_counter()
    try:
        with quiet(), warnings.catch_warnings(), torch.no_grad():
            # A user cannot change what inductor's warnings about its own parts and slow paths report.
            warnings.simplefilter("ignore")
            program = torch.export.load(folder / program_file)
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(path), inductor_configs=_OPTIONS
            )
    except Exception as error:  # inductor, its code generator and the compiler have no common error class
        path.unlink(missing_ok=True)
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise PackagingError(f"AOTInductor refuses it: {type(error).__name__}: {first}") from error
    seconds = time.perf_counter() - began
    try:
        with quiet():
            difference, shapes = _compared(
                CompiledProgram(path), program.module(), _cut(binding, check, target, slots)
            )
    except ParityError as error:
        path.unlink()
        raise PackagingError(f"the compiled program is wrong: {error}") from error
    record = CompiledRecord(str(torch.__version__), Machine.here(), difference, shapes, round(seconds, 1))
    (folder / RECORD_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))
    return record


def _compared(
    compiled: Any, eager: Any, cases: Iterator[tuple[str, Tensor, list[Tensor]]]
) -> tuple[float, int]:
    """The largest difference, and of how many shapes.

    A shape that the module itself refuses is skipped: it cannot be requested.
    """
    worst, count = 0.0, 0
    for name, seed, tensors in cases:
        with torch.no_grad():
            try:
                expected = eager(seed, *tensors).numpy()
            except Exception:  # user code on a generated shape
                continue
            try:
                actual = np.array(compiled(seed, *tensors).numpy())
            except Exception as error:  # compiled code raises RuntimeError with a shape in it
                raise ParityError(f"it fails on {name}, where the module does not: {error}") from error
        worst = max(worst, parity.compare(f"its answer on {name}", actual, expected))
        count += 1
    if not count:
        raise ParityError("the module answers none of the graphs that it is compared on")
    return worst, count


def _cut(
    binding: Binding, check: CheckGraph, target: str, names: Sequence[str]
) -> Iterator[tuple[str, Tensor, list[Tensor]]]:
    """Graphs of many shapes: name of the case, seed, the program's tensors."""
    rng = np.random.default_rng(0)
    for num_nodes, num_edges in _SHAPES:
        sizes = dict.fromkeys(check.features, num_nodes)
        yield _case(binding, _drawn(check, sizes, num_edges, rng), target, names)
    if len(check.features) > 1:  # an ego-graph may contain no nodes of the other types
        yield _case(binding, _drawn(check, {target: 1}, 0, rng), target, names)
        yield _case(binding, _drawn(check, {target: 3}, 5, rng), target, names)
    yield _case(binding, check, target, names)


def compiled_note(folder: Path, spec: ModelSpec, binding: Binding, check: CheckGraph, target: str) -> str:
    """Compile the whole program of an artifact; the result in words."""
    slots = read_slots(folder).slots
    try:
        record = compile_whole(folder, spec.whole_file or "", slots, binding, check, target)
    except PackagingError as error:
        log.warning("%s/%s is not compiled: %s", spec.name, spec.version, error)
        return f"not compiled, the eager program is served: {error}"
    return (
        f"compiled for torch {record.torch} on {record.machine.triple} in {record.seconds:.0f} s, within "
        f"{record.max_abs_diff:.1e} of the eager program on graphs of {record.shapes} shapes"
    )


def _case(
    binding: Binding, graph: CheckGraph, target: str, names: Sequence[str]
) -> tuple[str, Tensor, list[Tensor]]:
    nodes = ", ".join(f"{len(rows)} {name}" for name, rows in graph.features.items())
    edges = ", ".join(f"{len(edges.indices)} {key}" for key, edges in graph.edges.items())
    slots = binding.slots(graph)
    seed = torch.tensor([graph.num_nodes(target) - 1])
    return f"{nodes} nodes and {edges} edges", seed, [slots[name].contiguous() for name in names]


def _drawn(
    check: CheckGraph, sizes: Mapping[str, int], num_edges: int, rng: np.random.Generator
) -> CheckGraph:
    """Real rows between which edges are drawn; a type that `sizes` leaves out has no nodes."""
    features = {}
    for name, rows in check.features.items():
        features[name] = rows[rng.integers(0, len(rows), sizes.get(name, 0))]
    edges = {}
    for key, of in check.edges.items():
        num_src, num_dst = len(features[of.src]), len(features[of.dst])
        count = num_edges if num_src and num_dst else 0
        edges[key] = of.taken(
            of.drawn(count, rng),
            rng.integers(0, max(1, num_src), count),
            rng.integers(0, max(1, num_dst), count),
            num_dst,
        )
    return CheckGraph(features, edges)
