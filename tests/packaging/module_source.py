"""Writes the source of a random module: plain parts, and in most modules a trick or two.

A case is a function of its seed. The source is a file, so that tracebacks and `inspect` work and a failing
module can be pasted into a report.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import textwrap
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.zoo_phases.entry import draw_weights
from tests.packaging.module_ends import HEADS, OTHER_ENDS, PLAIN_ENDS, End
from tests.packaging.module_parts import (
    ACTIVATIONS,
    DROPOUTS,
    NORMS,
    OTHER_CONVS,
    PART_TRICKS,
    SPLIT_CONVS,
    Conv,
    Part,
)
from tests.packaging.module_signatures import PLAIN_SIGNATURE, SIGNATURES
from tests.packaging.module_world import WORLD_TRICKS

#: Columns of `x` and of edge attributes in the graphs of `random_graphs`.
X_DIM, ATTR_DIM = 6, 3

_PREAMBLE = """\
import datetime
import os
import random
import secrets
import socket
import time
import uuid

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import (
    add_self_loops,
    degree,
    dropout_edge,
    is_torch_sparse_tensor,
    scatter,
    to_undirected,
)

CALLS = 0
CACHE = {}
"""
#: Names that some lines use; each is written only where it is used.
_DEFINITIONS = {
    "Differences": """
class Differences(pyg.SAGEConv):
    def message(self, x_j):
        return x_j * x_j.tanh()
""",
    "Gated": """
class Gated(pyg.MessagePassing):
    def __init__(self, i, o):
        super().__init__(aggr="add")
        self.lin = nn.Linear(i, o)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_i, x_j):
        return torch.sigmoid(x_i) * x_j
""",
    "counter": """
def counter():
    calls = []
    def count():
        calls.append(1)
        return len(calls)
    return count
""",
    "hooked": """
def hooked(conv):
    conv.register_forward_hook(lambda module, arguments, out: out * 2)
    return conv
""",
    "normed": """
def normed(conv):
    nn.utils.parametrizations.weight_norm(conv.lin_l, "weight")
    return conv
""",
    "twice": """
def twice(h):
    if isinstance(h, torch.Tensor) and not isinstance(h, tuple):
        return h * 2
    raise TypeError(type(h))
""",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One random module.

    Attributes:
        source: of the file; its class is `Net`.
        quiet: the same without the lines that draw random numbers, where there are such.
        tricks: what it has beyond plain parts; empty means that it must be accepted.
        kinds: of its tricks.
        hops: fanouts that it is packaged with.
        layers: convolutions.
        takes: edge data that forward takes, in order.
        call: argument of forward -> attribute of the data, as the author calls it.
        columns: node tensors that the data has beside `x`.
        symmetric: the graph that it is packaged on has each edge both ways; the other has not.
        pure: False where the answer depends on earlier calls, on the clock or on the process.
    """

    seed: int
    source: str
    quiet: str
    tricks: tuple[str, ...]
    kinds: tuple[str, ...]
    end: End
    hops: int
    layers: int
    takes: tuple[str, ...]
    call: dict[str, str]
    columns: tuple[str, ...]
    symmetric: bool
    pure: bool

    @property
    def random(self) -> bool:
        """Whether the module's own answers differ from call to call."""
        return self.quiet != self.source

    def build(self, folder: Path, *, quiet: bool = False) -> tuple[nn.Module, nn.Module | None]:
        """Write the file and make the module, in eval mode, weights and statistics drawn from the seed.

        Returns: the module, and the one that is given as `head=`.
        """
        source = self.quiet if quiet else self.source
        path = folder / f"case_{self.seed}_{zlib.crc32(source.encode())}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # PyG looks up the module of a class
        spec.loader.exec_module(module)
        torch.manual_seed(self.seed)
        net, head = module.Net(), module.make_head() if self.end.head else None
        if head is not None:
            draw_weights(head, self.seed + 1)
        return draw_weights(net, self.seed), head


def write_case(seed: int, *, plain: bool | None = None) -> Case:
    """The case of a seed.

    Args:
        plain: only parts that must be accepted; None leaves it to the seed.
    """
    rng = random.Random(seed)
    drawn = rng.random() < 0.25
    return _Writer(rng, seed).case(drawn if plain is None else plain)


TRICKS = PART_TRICKS | WORLD_TRICKS
#: (kind, name) of everything that may be refused.
ALL_TRICKS = tuple(
    [(kind, name) for kind, parts in TRICKS.items() for name in parts]
    + [("convs", name) for name in OTHER_CONVS]
    + [("ends", name) for name in OTHER_ENDS]
    + [("signatures", name) for name in SIGNATURES]
)


def write_single(kind: str, name: str, conv: str, *, first: bool = False) -> Case:
    """The smallest module that has one trick.

    Args:
        kind, name: one of `ALL_TRICKS`.
        conv: its convolution, where the trick is none itself.
        first: before the convolution, not behind it.
    """
    return _Writer(random.Random(0), 0).single(kind, name, conv, first=first)


class _Writer:
    def __init__(self, rng: random.Random, seed: int) -> None:
        self._rng = rng
        self._seed = seed
        self._init: list[str] = []
        #: (line, line without randomness)
        self._forward: list[tuple[str, str]] = []
        self._tricks: list[tuple[str, str]] = []
        self._takes: list[str] = []
        self._width = X_DIM
        self._hops = 0
        self._count = 0
        self._signature = PLAIN_SIGNATURE
        self._symmetric = False
        self._pure = True

    def case(self, plain: bool) -> Case:
        rng = self._rng
        layers = rng.choice((1, 1, 2, 2, 2, 3) if plain else (1, 1, 1, 2, 2))
        wanted = (
            []
            if plain
            else rng.choices(
                ("conv", "part", "end", "signature"), (3, 8, 3, 2), k=rng.choice((1, 1, 1, 2, 3))
            )
        )
        if "signature" in wanted:
            self._sign(rng.choice(list(SIGNATURES)))
        conv_at = rng.randrange(layers) if "conv" in wanted else -1
        parts_at = [rng.randrange(-1, layers) for what in wanted if what == "part"]
        self._line("h = x")
        if rng.random() < 0.3:
            self._forward.pop()
            self._part(Part("h = F.relu(self.p{n}(x))", f"nn.Linear({X_DIM}, 8)"))
            self._width = 8
        for _ in range(parts_at.count(-1)):
            self._trick()
        skips = rng.random() < 0.3
        for layer in range(layers):
            if skips:
                self._line("before = h")
            width = self._width
            self._conv(odd=layer == conv_at)
            self._plain_parts(last=layer == layers - 1)
            for _ in range(parts_at.count(layer)):
                self._trick()
            if skips and self._width == width:
                self._line("h = h + before")
        end, head = self._end("end" in wanted)
        self._answer(head, end)
        # The module's own depth; now and then one less, which must be refused or be enough.
        hops = max(1, self._hops)
        if not plain and hops > 1 and rng.random() < 0.08:
            hops -= 1
            self._tricks.append(("hops", "one fanout too few"))
        return self._case(end, hops, layers)

    def single(self, kind: str, name: str, conv: str, *, first: bool) -> Case:
        self._line("h = x")
        part = TRICKS[kind][name] if kind in TRICKS else None
        if kind == "signatures":
            self._sign(name)
        else:
            self._tricks.append((kind, name))
        self._symmetric = kind == "degrees"
        if part is not None and first:
            self._part(part)
        if kind == "convs":
            self._add_conv(OTHER_CONVS[name], 8)
        else:
            self._add_conv((SPLIT_CONVS | OTHER_CONVS)[conv], 8)
        if part is not None and not first:
            self._part(part)
        end = OTHER_ENDS[name] if kind == "ends" else PLAIN_ENDS["multiclass"]
        self._answer(self._head("Linear", end), end)
        return self._case(end, max(1, self._hops), 1)

    def _answer(self, head: Part, end: End) -> None:
        self._line(head.lines)
        for text in end.lines.split("\n"):
            self._line(text)

    def _case(self, end: End, hops: int, layers: int) -> Case:
        return Case(
            seed=self._seed,
            source=self._source(0, end.head),
            quiet=self._source(1, end.head),
            tricks=tuple(name for _, name in self._tricks),
            kinds=tuple(kind for kind, _ in self._tricks),
            end=end,
            hops=hops,
            layers=layers,
            takes=tuple(self._takes),
            call=self._signature.call | {name: name for name in self._takes},
            columns=self._signature.columns,
            symmetric=self._symmetric,
            pure=self._pure,
        )

    def _sign(self, name: str) -> None:
        self._signature = SIGNATURES[name]
        self._tricks.append(("signatures", name))

    def _plain_parts(self, *, last: bool) -> None:
        rng = self._rng
        if rng.random() < 0.3:
            self._part(rng.choice(list(NORMS.values())))
        if not last or rng.random() < 0.5:
            self._part(rng.choice(list(ACTIVATIONS.values())))
        if rng.random() < 0.25:
            self._part(rng.choice(list(DROPOUTS.values())))

    def _trick(self) -> None:
        kind = self._rng.choices(list(TRICKS), (4, 4, 5, 4, 1, 2, 2, 2))[0]
        name = self._rng.choice(list(TRICKS[kind]))
        self._tricks.append((kind, name))
        self._symmetric |= kind == "degrees"
        self._part(TRICKS[kind][name])

    def _conv(self, *, odd: bool) -> None:
        rng = self._rng
        # Attention takes the exporter three times as long as the others.
        # A signature with optional arguments has no place for those of edges.
        plain = self._signature is PLAIN_SIGNATURE
        usual = [name for name, conv in SPLIT_CONVS.items() if plain or not conv.takes]
        weights = [1 if "GAT" in name or "Transformer" in name else 3 for name in usual]
        name = rng.choices(usual, weights)[0]
        conv: Conv = SPLIT_CONVS[name]
        if odd:
            name = rng.choice([name for name, conv in OTHER_CONVS.items() if plain or not conv.takes])
            conv = OTHER_CONVS[name]
            self._tricks.append(("convs", name))
        self._add_conv(conv, rng.choice((4, 8)))

    def _add_conv(self, conv: Conv, o: int) -> None:
        for role in conv.takes:
            if role not in self._takes:
                self._takes.append(role)
        i = self._width
        width = eval(conv.gives, {"i": i, "o": o, "max": max})
        if conv.make.startswith("pyg.GatedGraphConv"):
            o = width
        number = self._number()
        self._init.append(f"self.conv{number} = {conv.make.format(i=i, o=o)}")
        data = "".join(f", {role}" for role in conv.takes if role == "edge_weight")
        data += "".join(f", {role}" for role in conv.takes if role == "edge_attr")
        call = conv.call.format(conv=f"self.conv{number}", edge_data=data)
        self._line(f"h = {call}")
        self._width = width
        self._hops += conv.hops

    def _end(self, odd: bool) -> tuple[End, Part]:
        rng = self._rng
        name = rng.choice(list(OTHER_ENDS if odd else PLAIN_ENDS))
        end = (OTHER_ENDS if odd else PLAIN_ENDS)[name]
        if odd:
            self._tricks.append(("ends", name))
        return end, self._head(rng.choice(list(HEADS)), end)

    def _head(self, name: str, end: End) -> Part:
        lines, make = HEADS[name]
        self._init.append(f"self.head = {make.format(w=self._width, c=end.columns)}")
        return Part(lines)

    def _part(self, part: Part) -> None:
        number = self._number()
        values = {"w": self._width, "half": self._width // 2, "n": number}
        if part.init:
            self._init.append(f"self.p{number} = " + _filled(part.init, values))
        lines = _filled(part.lines, values).split("\n")
        quiet = lines if part.quiet is None else [part.quiet] + [""] * (len(lines) - 1)
        self._forward.extend(zip(lines, quiet, strict=True))
        self._hops += part.hops
        self._pure &= part.pure

    def _number(self) -> int:
        self._count += 1
        return self._count

    def _line(self, text: str) -> None:
        self._forward.append((text, text))

    def _source(self, which: int, head: str) -> str:
        signature = self._signature
        arguments = signature.arguments + "".join(f", {name}" for name in self._takes)
        forward = "\n".join([*signature.lines.split("\n"), *(pair[which] for pair in self._forward)])
        declared = "global CALLS\n"  # once, before its first use
        if declared in forward:
            forward = declared + forward.replace(declared, "")
        init = "\n".join(["super().__init__()", *self._init])
        body = (
            "\n\nclass Net(nn.Module):\n    def __init__(self):\n"
            + textwrap.indent(init, " " * 8)
            + f"\n\n    def forward(self, {arguments}):\n"
            + textwrap.indent(forward, " " * 8)
            + "\n"
            + (f"\n\ndef make_head():\n    return {head}\n" if head else "")
        )
        used = [text for name, text in _DEFINITIONS.items() if f"{name}(" in body]
        return _PREAMBLE + "\n".join(["", *used]) + body


def _filled(text: str, values: dict[str, Any]) -> str:
    """Braces of Python stay: only the three names are filled in."""
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    return text
