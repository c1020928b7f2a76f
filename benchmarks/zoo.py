"""Every convolution and model of the installed PyG: is it served, and is the answer the module's own?

Each class of `torch_geometric.nn.conv` and `torch_geometric.nn.models` that takes node rows is packaged in
a module of two layers with random weights, on graphs of one and of several node types, with and without
edge data. It is served from a disk at all neighbours (fanout -1) and compared, for hubs, isolated nodes and
others, with what the module itself answers on the whole graph. A class that is in no table makes the
benchmark fail.

    split     as stages of ONNX
    refused   by `hopline.package`, with the reason
    silent    another answer than the module's, without a word
    crashed   any other error, while packaging or serving

Fanouts are one a layer at first; where a refusal says how many hops the model looks, once more with enough.
Where packaging asks a question that only the owner of a model can answer (was it trained with the weights
of edges? does it answer logits? is this a table with a row for each node?), the entry declares the answer,
as the message says: `Entry.options`. So does the graph where a model reads edges against their direction.
In a `frozen` entry, statistics of all rows are constants, those of the graph (`freeze=True`).

    python -m benchmarks.zoo [--quick] [--only NAME]

Prints a table; the last line is one JSON object with the counts. The exit status is 1 where a class is
missing from the tables.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.machine import commit, machine

#: Nodes compared, of each entry.
SEEDS, QUICK_SEEDS = 300, 60
ALONE = 20


def undescribed() -> tuple[list[str], list[str]]:
    """Classes of PyG that no table has, and names of the tables that PyG does not have."""
    from torch_geometric.nn import conv, models

    from benchmarks.zoo_phases import convs
    from benchmarks.zoo_phases import models as model_table

    public = {*conv.__all__, *models.__all__}
    described = {*convs.TABLE, *convs.EXCLUDED, *model_table.TABLE, *model_table.EXCLUDED}
    return sorted(public - described), sorted(described - public)


def run(quick: bool, only: str, folder: Path) -> list[dict[str, Any]]:
    """One row for each entry, printed as soon as it is ready."""
    import torch

    from benchmarks.zoo_phases import convs
    from benchmarks.zoo_phases import models as model_table
    from benchmarks.zoo_phases.entry import describe, draw_weights
    from benchmarks.zoo_phases.graphs import zoo_graph
    from benchmarks.zoo_phases.verdict import ServedGraph, ask_module, judge

    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    tables = (("conv", convs.TABLE), ("model", model_table.TABLE))
    every = [
        (kind, describe(class_name, entry), entry)
        for kind, table in tables
        for class_name, entries in table.items()
        for entry in (entries[:1] if quick else entries)
    ]
    wanted = [each for each in every if each[1] == only] or [each for each in every if only in each[1]]
    for kind, name, entry in wanted:
        began = time.perf_counter()
        place = zoo_graph(entry.graph, folder)
        torch.manual_seed(len(rows))
        module = draw_weights(entry.make(), len(rows))
        arguments = place.arguments(module)
        expected = ask_module(module, arguments)
        if isinstance(expected, dict):
            expected = expected[entry.target]

        def rounding(module: Any, arguments: Any, expected: Any) -> float:
            exact = ask_module(module, arguments, dtype=torch.float64)
            return float((exact - expected).abs().max())

        seeds = place.seeds(entry.target, QUICK_SEEDS if quick else SEEDS).tolist()
        served = ServedGraph(
            place.graph,
            expected,
            seeds,
            seeds[:ALONE],
            partial(rounding, module, arguments, expected),
        )
        found = judge(
            module,
            place.graph,
            folder / "models",
            [served],
            fanouts=entry.layers,
            task="multiclass",
            target=entry.target,
            **entry.options,
        )
        row = {
            "kind": kind,
            "name": name,
            "outcome": found.kind,
            "fanouts": found.fanouts,
            "max_diff": found.max_diff,
            "node_us": None if found.node_us is None else round(found.node_us, 1),
            "why": " ".join(found.why.split()),
            "seconds": round(time.perf_counter() - began, 1),
        }
        _show(row)
        rows.append(row)
    return rows


def _show(row: dict[str, Any]) -> None:
    diff = "" if row["max_diff"] is None else f"{row['max_diff']:.1e}"
    node = "" if row["node_us"] is None else f"{row['node_us']:,.0f}"
    line = (
        f"  {row['name']:<36}{row['outcome']:<9}{row['fanouts']:>5}{diff:>10}{node:>9}  {row['why'][:300]}"
    )
    print(line.rstrip(), flush=True)


def main() -> int:
    """Run the command. Returns 1 where a class of PyG is in no table."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--quick", action="store_true", help="the first entry of each class, fewer nodes")
    parser.add_argument(
        "--only", default="", help="the entry of this name, or those that have it in theirs"
    )
    args = parser.parse_args()
    at_start = machine()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    missing, unknown = undescribed()
    print(f"  {'class, variant, graph':<36}{'outcome':<9}{'hops':>5}{'max diff':>10}{'µs/node':>9}")
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        rows = run(args.quick, args.only, Path(folder))

    import torch_geometric

    from benchmarks.zoo_phases import convs, models
    from benchmarks.zoo_phases.verdict import KINDS

    print("\n  left out")
    for name, reason in {**convs.EXCLUDED, **models.EXCLUDED}.items():
        print(f"  {name:<36}{reason}")
    counts = Counter(row["outcome"] for row in rows)
    print("\n  " + ", ".join(f"{kind} {counts[kind]}" for kind in KINDS))
    for name in missing:
        print(f"MISSING: {name} has no entry in benchmarks/zoo_phases and no reason to be left out")
    told: dict[str, Any] = {
        **{str(kind): counts[kind] for kind in KINDS},
        "entries": rows,
        "left_out": {**convs.EXCLUDED, **models.EXCLUDED},
        "missing": missing,
        "not_in_this_pyg": unknown,
        "config": {"quick": args.quick, "only": args.only},
        "pyg": torch_geometric.__version__,
        "machine": at_start,
        "commit": commit(),
    }
    print(json.dumps(told))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
