"""Card payments as edges with their own columns, trained in PyG and scored by their ends and columns.

    python -m examples.edges            # shows what happens
    python -m examples.edges --check    # and fails unless the served answers are right

Payments are generated. A few accounts form rings: they pay the same merchants, and some amounts are high. A
payment of a ring is fraud. The last line printed is one JSON object:

    max_abs_diff          largest difference from PyG on the whole graph, of payments that are in the graph
    new_diff              of new payments between known ends
    half_new_diff         of payments by accounts that the graph does not have
    by_ends_diff          of payments without columns, which have those of the graph
    batch_new_diff        of new payments that `hopline batch` reads from a table
    batch_known_diff      of all payments of the graph, each scored without itself, by `hopline batch`
    batch_server_diff     between both of these and the server's answers: 0
    average_precision     of later payments; `by_columns` is that of a model without the graph
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

import hopline
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.types import ContextNode, FloatArray, IdArray
from hopline_demo.process import serving

ACCOUNTS, MERCHANTS, PAYMENTS, RINGS = 600, 80, 6_000, 12
LARGEST_DIFFERENCE = 1e-4
PAYS, PAID_BY = ("account", "pays", "merchant"), ("merchant", "paid_by", "account")
_DIM = 16


def draw(seed: int) -> tuple[IdArray, pd.DataFrame, FloatArray]:
    """Ends of payments int64 [2, n], their columns, and 1 for fraud."""
    rng = np.random.default_rng(seed)
    ends = np.stack([rng.integers(0, ACCOUNTS, PAYMENTS), rng.integers(0, MERCHANTS, PAYMENTS)])
    fraud, amount = np.zeros(PAYMENTS, np.float32), rng.lognormal(3, 1, PAYMENTS)
    for ring in range(RINGS):
        members, shops = rng.choice(ACCOUNTS, 6, replace=False), rng.choice(MERCHANTS, 2, replace=False)
        chosen = rng.choice(PAYMENTS, 40, replace=False)
        ends[:, chosen] = rng.choice(members, 40), rng.choice(shops, 40)
        fraud[chosen], amount[chosen] = 1.0, rng.lognormal(3.6, 1, 40) + ring
    currency = rng.choice(["EUR", "USD", "JPY"], PAYMENTS)
    return ends, pd.DataFrame({"amount": amount, "currency": currency}), fraud


class Encoder(nn.Module):
    """Two hops over the payments, in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(SAGEConv((dim, dim), _DIM) for dim in (8, 8, _DIM, _DIM))

    def forward(self, x_dict: Any, edge_index_dict: Any) -> dict[str, Tensor]:
        """Rows of nodes by type to states by type, float32 [N, 16]."""
        account, merchant = x_dict["account"], x_dict["merchant"]
        for forth, back in (self.convs[:2], self.convs[2:]):
            merchant, account = (
                forth((account, merchant), edge_index_dict[PAYS]).relu(),
                back((merchant, account), edge_index_dict[PAID_BY]).relu(),
            )
        return {"account": account, "merchant": merchant}


class Decoder(nn.Module):
    """Reads both ends and the payment's own row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2 * _DIM + width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, h_src: Tensor, h_dst: Tensor, edge_attr: Tensor) -> Tensor:
        """float32 [n, 16] twice and [n, width] to logits [n, 1]."""
        logits: Tensor = self.layers(torch.cat([h_src, h_dst, edge_attr], dim=1))
        return logits


def batch(folder: Path, to: str, *words: str) -> pd.DataFrame:
    """The table that a batch run over edges writes."""
    common = ["--model", "payments", "--graph", folder / "graph", "--repository", folder / "models"]
    command = [sys.executable, "-m", "hopline", "batch", *common, "--to", folder / to, *words]
    subprocess.run([*map(str, command), "--outputs", "logits", "--json"], check=True, stdout=sys.stderr)
    found = pd.read_parquet(folder / to)
    return found.assign(logits=np.stack(found["logits"].tolist())[:, 0])


def run(epochs: int, folder: Path, console: Console) -> dict[str, float]:
    """Train, package, serve and compare."""
    torch.manual_seed(0)
    ends, frame, fraud = draw(0)
    rng = np.random.default_rng(1)
    x = {
        name: rng.normal(size=(n, 8)).astype("f4")
        for name, n in (("account", ACCOUNTS), ("merchant", MERCHANTS))
    }
    later = np.arange(PAYMENTS) >= PAYMENTS * 3 // 4
    columns = ColumnTransformer([("n", StandardScaler(), ["amount"]), ("c", OneHotEncoder(), ["currency"])])
    columns.fit(frame[~later])
    rows = torch.tensor(columns.transform(frame).astype("f4"))
    known = torch.tensor(ends[:, ~later])
    encoder, decoder = Encoder(), Decoder(rows.shape[1])
    tensors = {name: torch.tensor(each) for name, each in x.items()}

    def score(of: IdArray, own: Tensor, given: Any = tensors, to_account: Any = None) -> Tensor:
        h = encoder(given, {PAYS: known, PAID_BY: known.flip(0) if to_account is None else to_account})
        logits: Tensor = decoder(h["account"][of[0]], h["merchant"][of[1]], own)
        return logits

    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.01)
    for _ in range(epochs):
        optimizer.zero_grad()
        wanted = torch.tensor(fraud[~later, None])
        nn.functional.binary_cross_entropy_with_logits(
            score(ends[:, ~later], rows[~later]), wanted
        ).backward()
        optimizer.step()
    encoder.eval(), decoder.eval()
    graph = Graph.from_tables(
        {
            "account": NodeTable(x["account"], ids=[f"a-{i}" for i in range(ACCOUNTS)]),
            "merchant": NodeTable(x["merchant"], ids=[f"m-{i}" for i in range(MERCHANTS)]),
        },
        {
            PAYS: EdgeTable(ends[:, ~later], columns=frame[~later], by_row=True),
            PAID_BY: EdgeTable(ends[::-1, ~later], by_row=True),
        },
    ).save(folder / "graph")
    report = hopline.package(
        encoder,
        graph,
        folder / "models",
        name="payments",
        fanouts=[-1, -1],
        task="binary",
        target=("account", "merchant"),
        head=decoder,
        preprocess={PAYS: columns},
    )
    console.print(f"packaged in {report.seconds:.1f} s")

    def edges(at: IdArray) -> list[dict[str, Any]]:
        pairs = zip(*ends[:, at].tolist(), frame.iloc[at].to_dict("records"), strict=True)
        return [{"from": f"a-{a}", "to": f"m-{m}", "columns": row} for a, m, row in pairs]

    figures: dict[str, float] = {}
    with (
        serving(folder / "graph", folder / "models") as served,
        hopline.Client(served.url) as client,
        torch.no_grad(),
    ):

        def largest(given: list[dict[str, Any]], expected: Tensor, **options: Any) -> float:
            found = client.score_edges("payments", given, outputs=["logits"], **options).outputs["logits"]
            return float(np.abs(found - expected.numpy()).max())

        some, new = np.flatnonzero(~later)[::9], np.flatnonzero(later)[:500]
        figures["max_abs_diff"] = largest(edges(some), score(ends[:, some], rows[some]))
        figures["new_diff"] = largest(edges(new), score(ends[:, new], rows[new]))
        shops = [3, 5]
        account = ContextNode(
            type="account",
            id="new",
            features=[0.5] * 8,
            neighbors={"merchant__paid_by__account": [f"m-{i}" for i in shops]},
        )
        further = {**tensors, "account": torch.cat([tensors["account"], torch.full((1, 8), 0.5)])}
        paid = torch.cat([known.flip(0), torch.tensor([shops, [ACCOUNTS] * 2])], dim=1)
        half = [{**each, "from": "new"} for each in edges(new[:50])]
        of = np.stack([np.full(50, ACCOUNTS), ends[1, new[:50]]])
        expected = score(of, rows[new[:50]], further, paid)
        figures["half_new_diff"] = largest(half, expected, context=[account])
        once = some[~pd.DataFrame(ends.T)[~later].duplicated(keep=False).to_numpy()[::9]]
        by_ends = [{"from": each["from"], "to": each["to"]} for each in edges(once)]
        figures["by_ends_diff"] = largest(by_ends, score(ends[:, once], rows[once]))
        served_scores = score(ends[:, later], rows[later]).numpy()[:, 0]

        def served_as(found: pd.DataFrame, columns: pd.DataFrame, **options: Any) -> float:
            asked = [
                {"from": source, "to": target, "columns": row}
                for source, target, row in zip(
                    found["from"], found["to"], columns.to_dict("records"), strict=True
                )
            ]
            answer = client.score_edges("payments", asked, outputs=["logits"], **options)
            return float(np.abs(answer.outputs["logits"][:, 0] - found["logits"]).max())

        table = pd.DataFrame([{"from": each["from"], "to": each["to"]} for each in edges(new)])
        columns_of_new = frame.iloc[new].reset_index(drop=True)
        table.join(columns_of_new).to_csv(folder / "new.csv", index=False)
        found = batch(folder, "new.parquet", "--edges", str(folder / "new.csv"))
        right = score(ends[:, new], rows[new])[:, 0].numpy()
        figures["batch_new_diff"] = float(np.abs(found["logits"] - right).max())
        figures["batch_server_diff"] = served_as(found, columns_of_new)
        found = batch(folder, "all.parquet", "--edges", "all", "--exclude-seed-edges", "reverse")
        stored = graph.edges["__".join(PAYS)].columns
        assert stored is not None
        raw = stored.frame()
        own = torch.tensor(columns.transform(raw).astype("f4"))
        figures["batch_known_diff"] = 0.0
        for at in range(0, len(found), len(found) // 50):
            pair = [int(found[name].iloc[at][2:]) for name in ("from", "to")]
            left = known[:, ~(known == torch.tensor(pair)[:, None]).all(dim=0)]
            h = encoder(tensors, {PAYS: left, PAID_BY: left.flip(0)})
            without = decoder(h["account"][pair[:1]], h["merchant"][pair[1:]], own[at : at + 1])
            difference = abs(without.item() - found["logits"].iloc[at])
            figures["batch_known_diff"] = max(figures["batch_known_diff"], difference)
        part = found.iloc[::9]
        figures["batch_server_diff"] = max(
            figures["batch_server_diff"],
            served_as(part, raw.iloc[::9], exclude_seed_edges="reverse"),
        )
    plain = LogisticRegression().fit(rows[~later].numpy(), fraud[~later])
    figures["average_precision"] = float(average_precision_score(fraud[later], served_scores))
    scores = plain.predict_proba(rows[later].numpy())[:, 1]
    figures["by_columns"] = float(average_precision_score(fraud[later], scores))
    return figures


def main() -> int:
    """The example; the exit code is 1 with --check if an answer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail unless the served answers are PyG's")
    parser.add_argument("--epochs", type=int, help="default: 150, with --check 60")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = run(options.epochs or (60 if options.check else 150), Path(folder), Console(stderr=True))
    print(json.dumps({name: float(f"{value:.3g}") for name, value in figures.items()}))
    worst = max(value for name, value in figures.items() if name.endswith("diff"))
    is_right = (
        worst <= LARGEST_DIFFERENCE
        and figures["batch_server_diff"] == 0.0
        and figures["average_precision"] > figures["by_columns"]
    )
    return int(options.check and not is_right)


if __name__ == "__main__":
    sys.exit(main())
