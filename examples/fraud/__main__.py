"""A checkout that asks whether a card payment is fraud, and crowd workers known by their company.

    python -m examples.fraud            # shows what happens
    python -m examples.fraud --check    # smaller, and fails unless all of it is right

1. Trees alone and trees on GNN embeddings of Tolokers, over its public splits: ROC-AUC of both.
2. A server in a process that cannot import torch, scikit-learn or XGBoost: the payment service asks the
   pipeline `fraud` over gRPC with a key that lets it do nothing else.
3. A flash sale shifts what is bought: drift of the merchant categories is reported.
4. An administrator rolls out version 2 of the trees over REST while checkouts continue: in the
   shadow, then as a canary to 100 %. Version 3 was trained on amounts in cents; its gates roll it back.

The last line printed is one JSON object:

    auc                     mean over the splits: trees, gnn_trees, gnn (the networks alone)
    decisions               of version 1 on the test transactions: block, step_up, allow
    grpc_ms                 p50 and p99 of calls of one transaction, as the payment service sees them
    rollouts                how the shadow, the canary and the broken version went
    sale                    level of drift of merchant categories before and after
    tolokers_auc_…          split 1: offline, as served, as served with sampled neighbours
    …_max_abs_diff          largest difference of a served score from the estimators' own

Data: `graphs/tolokers.npz` in $HOPLINE_DATA (default ../shared/data), read in place; where there is none,
PyG downloads its own copy. Transactions are generated.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.fraud.build import build
from examples.fraud.risk import auc_of_splits
from examples.fraud.story import SMALL, Scale, tell
from examples.fraud.tolokers import NUM_SPLITS

LARGEST_DIFFERENCE = 1e-4
_LEAST_GAIN = 0.05


def run(num_splits: int, scale: Scale, console: Console) -> dict[str, Any]:
    """The whole example; returns the figures."""
    torch.set_num_threads(1)
    # Trees are packaged while the payment service's connection is open; gRPC need not follow into children.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    began = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(32), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=1.0)

        def at(done: float, text: str) -> None:
            progress.update(task, completed=done, description=f"AUC of {text}" if text else "")

        splits = auc_of_splits(num_splits, at)
        with tempfile.TemporaryDirectory(prefix="hopline-fraud-") as name:
            folder = Path(name)
            progress.update(task, total=None)
            built = build(folder, lambda text: progress.update(task, description=text))
            progress.update(task, description="serving")
            figures = tell(built, folder, scale, lambda text: console.print(text, soft_wrap=True))
    auc = {name: round(float(np.mean(values)), 4) for name, values in splits.items()}
    by_split = {name: [round(value, 4) for value in values] for name, values in splits.items()}
    return {
        "auc": auc,
        "auc_by_split": by_split,
        **figures,
        "s": round(time.perf_counter() - began, 1),
    }


def failures(figures: dict[str, Any]) -> list[str]:
    """Faults that --check finds in the figures, in words; empty for none."""
    found = []
    for name in ("fraud", "tolokers"):
        differs = figures[f"{name}_max_abs_diff"]
        if not differs <= LARGEST_DIFFERENCE:
            found.append(
                f"{name}: served scores differ by {differs:.2e} from the estimators' own; "
                f"{LARGEST_DIFFERENCE:.0e} is allowed"
            )
    auc = figures["auc"]
    if not auc["gnn_trees"] >= auc["trees"] + _LEAST_GAIN:
        found.append(
            f"AUC {auc['gnn_trees']} on embeddings, {auc['trees']} without: less than {_LEAST_GAIN} more"
        )
    if not figures["decisions_equal"]:
        found.append("decisions are not what the rules make of the scores")
    for name, count in figures["decisions"].items():
        if not count:
            found.append(f"no transaction was decided as {name!r}")
    for name, may in figures["permissions"].items():
        if may:
            found.append(f"permissions: {name.replace('_', ' ')}")
    sale = figures["sale"]
    if (sale["before"], sale["after"]) != ("ok", "alert"):
        found.append(
            f"sale: categories at {sale['before']!r} before and {sale['after']!r} after, not ok and alert"
        )
    rollouts = figures["rollouts"]
    for name, wanted in (("shadow", "ended"), ("canary", "promoted"), ("broken", "rolled_back")):
        if rollouts[name]["status"] != wanted:
            found.append(f"{name}: {rollouts[name]['status']}, not {wanted}: {rollouts[name]['reason']}")
    if figures["serving"] != "2":
        found.append(f"version {figures['serving']} serves at the end, not 2")
    if figures["meanwhile"]["errors"]:
        found.append(f"checkouts failed while versions changed: {figures['meanwhile']['errors'][0]}")
    return found


def summary(figures: dict[str, Any]) -> Table:
    """The figures for people."""
    auc, rollouts, counts = figures["auc"], figures["rollouts"], figures["decisions"]
    broken, shadow = rollouts["broken"], rollouts["shadow"]
    table = Table("what", "outcome", title="Fraud scores", title_justify="left")
    rows = {
        f"Tolokers, ROC-AUC, splits: {len(figures['auc_by_split']['trees'])}": (
            f"trees {auc['trees']:.4f}, trees on embeddings {auc['gnn_trees']:.4f}, GNN {auc['gnn']:.4f}"
        ),
        "as served, split 1": (
            f"{figures['tolokers_auc_served']:.4f}; sampled neighbours "
            f"{figures['tolokers_auc_served_sampled']:.4f}"
        ),
        "served against offline": (
            f"apart by at most {figures['fraud_max_abs_diff']:.1e} (fraud), "
            f"{figures['tolokers_max_abs_diff']:.1e} (Tolokers)"
        ),
        "decisions": ", ".join(f"{name} {count:,}" for name, count in counts.items()),
        "gRPC, one transaction": f"p50 {figures['grpc_ms']['p50']} ms, p99 {figures['grpc_ms']['p99']} ms",
        "flash sale": f"merchant categories at {figures['sale']['after']} after {figures['sale']['s']} s",
        "version 2 in the shadow": f"{shadow['differing']} of {shadow['compared']} compared answers differ",
        "version 2 as a canary": f"{rollouts['canary']['status']} after {rollouts['canary']['s']} s",
        "version 3, in cents": (
            f"{broken['status']}, {broken['harmed']} checkouts harmed: {broken['reason']}"
        ),
        "checkouts meanwhile": (
            f"{figures['meanwhile']['requests']:,}, {len(figures['meanwhile']['errors'])} errors"
        ),
    }
    for what, outcome in rows.items():
        table.add_row(what, outcome)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.fraud", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--check", action="store_true", help="smaller; exit with 1 unless all of it is right"
    )
    parser.add_argument("--splits", type=int, choices=range(1, NUM_SPLITS + 1), metavar="1…10")
    arguments = parser.parse_args()
    # People read stderr, programs the one line on stdout.
    console = Console(stderr=True, highlight=False)
    num_splits = arguments.splits or (1 if arguments.check else NUM_SPLITS)
    figures = run(num_splits, SMALL if arguments.check else Scale(), console)
    console.print(summary(figures))
    wrong = failures(figures) if arguments.check else []
    for text in wrong:
        console.print(f"[bold red]check failed:[/bold red] {text}")
    print(json.dumps(figures))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
