"""Convolutions made at random from what PyG's message passing offers.

    python -m tests.packaging.random_passing [--count 2000] [--seed 0]

Each is split and compared with its own answer on the whole graph, stage by stage in torch. Prints the
source of each that is refused or answers something else, and last one JSON object with the counts. The exit
status is 1 where an answer was wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import warnings
from collections import Counter
from random import Random

import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.utils import add_self_loops, degree, remove_self_loops, scatter, softmax

from hopline.errors import NotSplittable, PackagingError
from tests.packaging.graphs import homogeneous
from tests.packaging.in_torch import assert_equals_pyg

AGGREGATIONS = ["sum", "mean", "max", "min", "std", "softmax", "powermean", ["mean", "max"], ["sum", "std"]]
LOOPS = [
    "",
    "edge_index, edge_attr = remove_self_loops(edge_index, edge_attr)\n",
    "edge_index, edge_attr = add_self_loops(edge_index, edge_attr, 'mean', num_nodes=x.size(0))\n",
    "edge_index, edge_attr = remove_self_loops(edge_index, edge_attr)\n"
    "edge_index, edge_attr = add_self_loops(edge_index, edge_attr, 0.5, num_nodes=x.size(0))\n",
]
#: Lines of `message`, and arguments that they read beside `x_j`. Each changes `m`, rows of edges [E, 6].
MESSAGES = [
    ("m = m * torch.sigmoid(self.gate(torch.cat([x_i, x_j], dim=-1)))", ["x_i"]),
    ("m = m - x_i", ["x_i"]),
    ("m = m * edge_attr[:, :1]", ["edge_attr"]),
    ("m = m + self.edge(edge_attr)", ["edge_attr"]),
    ("m = F.leaky_relu(m, 0.2)", []),
    (
        "a = (x_i * x_j).sum(dim=-1, keepdim=True)\nm = m * softmax(a, index, ptr, size_i)",
        ["x_i", "index", "ptr", "size_i"],
    ),
    (
        "a = softmax(self.head(x_j).view(-1, 2), index)\n"
        "m = (a.unsqueeze(-1) * m.view(-1, 2, 3)).flatten(1)",
        ["index"],
    ),
    ("m = m / count_j", ["count_j"]),
    ("m = m * count_i.sqrt()", ["count_i"]),
    ("m = F.normalize(m, p=2.0, dim=-1)", []),
    ("m = m * F.cosine_similarity(x_i, x_j).unsqueeze(-1)", ["x_i"]),
]
AFTER = [
    "h = h + x",
    "h = h / (degree(edge_index[1], x.size(0)).view(-1, 1) + 1.0)",
    "h = h - scatter(x[edge_index[0]], edge_index[1], dim=0, dim_size=x.size(0), reduce='mean')",
    "h = torch.cat([h, x], dim=-1) @ self.mix",
    "h = h.tanh()",
]


def write(seed: int) -> str:
    """The source of a class `Random(MessagePassing)`."""
    rng = Random(seed)
    lines = rng.sample(MESSAGES, rng.randint(0, 3))
    args = dict.fromkeys(["x_j", *(name for _, names in lines for name in names)])
    body = "\n".join(["m = x_j", *(line for line, _ in lines), "return m"])
    aggr = rng.choice(AGGREGATIONS)
    fold = "" if isinstance(aggr, str) else "h = h[:, :6] - h[:, 6:]\n"
    call = f"h = self.propagate(edge_index, x=x, edge_attr=edge_attr, count=count)\n{fold}"
    after = [rng.choice(AFTER) + "\n" for _ in range(rng.randint(0, 2))]
    again = rng.random() < 0.3
    turns, flow = rng.random() < 0.25, rng.choice([*3 * ["source_to_target"], "target_to_source"])
    forward = "".join(
        [
            "edge_index = edge_index.flip(0)\n" if turns else "",
            # a fill by name is over the edges that enter a node
            rng.choice(LOOPS if flow == "source_to_target" else [LOOPS[0], LOOPS[1], LOOPS[3]]),
            f"count = (degree(edge_index[{rng.choice([0, 1, 1])}], x.size(0)) + 1.0).view(-1, 1)\n",
            "x = self.lin(x)\n" if rng.random() < 0.5 else "",
            call,
            *after,
            f"x = h.tanh()\n{call}" if again else "",
            "return h\n",
        ]
    )
    return (
        "class Random(pyg.MessagePassing):\n"
        "    def __init__(self):\n"
        f"        super().__init__(aggr={aggr!r}, flow={flow!r})\n"
        "        self.lin, self.gate, self.edge = nn.Linear(6, 6), nn.Linear(12, 6), nn.Linear(2, 6)\n"
        "        self.head, self.mix = nn.Linear(6, 2), nn.Parameter(torch.randn(12, 6) / 3)\n\n"
        "    def forward(self, x, edge_index, edge_attr):\n"
        f"{textwrap.indent(forward, ' ' * 8)}\n"
        f"    def message(self, {', '.join(args)}):\n"
        f"{textwrap.indent(body, ' ' * 8)}\n"
    )


def build(source: str) -> nn.Module:
    """An instance of the class."""
    scope = {
        "pyg": pyg, "nn": nn, "torch": torch, "F": nn.functional, "add_self_loops": add_self_loops,
        "degree": degree, "remove_self_loops": remove_self_loops, "scatter": scatter, "softmax": softmax,
        "__name__": __name__,
    }  # fmt: skip
    exec(source, scope)
    return scope["Random"]()


def judge(seed: int) -> str:
    """`split`, or the reason for a refusal.

    Raises: AssertionError, PackagingError: a stage or the answer differs from PyG's.
    """
    torch.manual_seed(seed)
    model = build(write(seed))
    try:
        assert_equals_pyg(model, homogeneous(attr_dim=2, both=True))
    except NotSplittable as error:
        return str(error)
    return "split"


def main() -> int:
    """Judge many; the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.count):
        try:
            found = judge(seed)
        except (AssertionError, PackagingError) as error:
            found = "wrong"
            print(seed, write(seed), error, sep="\n", flush=True)
        if found not in ("split", "wrong"):
            print(seed, write(seed), found, sep="\n", flush=True)
            found = "refused"
        counts[found] += 1
    print(json.dumps(dict(counts)))
    return int(bool(counts["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
