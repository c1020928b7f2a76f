"""Fraud from CSV files: texts, codes, dates and empty cells in, with the preprocessing in the artifact.

    python -m examples.fraud_graph            # shows what happens
    python -m examples.fraud_graph --check    # and fails unless the served answers are right

Accounts, merchants and payments are generated as CSV files. The graph keeps the columns of all three
unchanged. A scikit-learn `ColumnTransformer` for each type is fitted on them, and a PyG module is trained
on what it gives: features of nodes, and attributes of edges. All are packaged as one artifact. Then 1,000
new accounts are sent to the server with their raw values and those of their payments: some cells are empty,
some countries and currencies are unseen. The same request describes 20 new merchants, at which some paid.
The last line printed is one JSON object:

    max_abs_diff        largest difference of all accounts from PyG on the transformed frames
    unseen_diff         the same for the new accounts, each with edges to merchants, known and new
    at_new              new accounts that paid at a new merchant
    with_null, with_unseen      new accounts with an empty cell, and with a category that the graph lacks
    by_payments         how far the logits move if the payments exchange their rows
    auc                 of the new accounts: the answers against what their frauds were drawn from
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv, HeteroConv

import hopline
from hopline import Graph
from hopline.graph import EdgeFile, NodeFile
from hopline.types import ContextNode, FloatArray, InlineNode
from hopline_demo.process import serving

ACCOUNTS, MERCHANTS, PAYMENTS, NEW, NEW_MERCHANTS = 4_000, 300, 20_000, 1_000, 20
LARGEST_DIFFERENCE = 1e-4
PAYS, PAID_BY = ("account", "pays", "merchant"), ("merchant", "paid_by", "account")
_COUNTRIES, _CODES = ["DE", "FR", "JP", "BR", "US"], ["5411", "5812", "0742", "7995"]
_CURRENCIES, _PAYMENT = ["EUR", "USD", "JPY"], ["amount", "currency", "time"]


def draw_accounts(count: int, random: np.random.Generator, countries: list[str]) -> pd.DataFrame:
    """Accounts as their table has them; every column but the id and the label has empty cells."""
    country = random.choice(countries, count)
    income = random.lognormal(7, 1, count).round(2)
    opened = pd.Timestamp("2018-01-01") + pd.to_timedelta(random.integers(0, 2_500, count), "D")
    verified = random.random(count) < 0.8
    odds = (
        2.0 * (country == "BR")
        - 1.5 * verified
        + 0.4 * (opened > "2023-01-01")
        - 0.3 * np.log(income / 1000)
    )
    frame = pd.DataFrame(
        {
            "country": country,
            "income": income,
            "opened": opened.strftime("%Y-%m-%d"),
            "verified": np.where(verified, "true", "false"),
            "is_fraud": (random.random(count) < 1 / (1 + np.exp(-odds))).astype(int),
        }
    )
    for name in ("country", "income", "opened", "verified"):
        frame.loc[random.random(count) < 0.05, name] = None
    return frame


def draw_merchants(count: int, random: np.random.Generator, codes: list[str]) -> pd.DataFrame:
    """Merchants as their table has them."""
    turnover = random.lognormal(9, 1, count).round()
    return pd.DataFrame({"mcc": random.choice(codes, count), "turnover": turnover})


def draw_payments(count: int, random: np.random.Generator, currencies: list[str]) -> pd.DataFrame:
    """Payments as their table has them; some amounts and currencies are empty."""
    time = pd.Timestamp("2024-01-01") + pd.to_timedelta(random.integers(0, 30_000_000, count), "s")
    frame = pd.DataFrame(
        {
            "amount": random.lognormal(4, 1, count).round(2),
            "currency": random.choice(currencies, count),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
    )
    for name in ("amount", "currency"):
        frame.loc[random.random(count) < 0.05, name] = None
    return frame


def write_files(folder: Path, random: np.random.Generator) -> None:
    """accounts.csv, merchants.csv, payments.csv and new_accounts.csv."""
    accounts = draw_accounts(ACCOUNTS, random, _COUNTRIES)
    accounts.insert(0, "id", [f"a{row}" for row in range(ACCOUNTS)])
    accounts.to_csv(folder / "accounts.csv", index=False)
    merchants = draw_merchants(MERCHANTS, random, _CODES)
    merchants.insert(0, "id", [f"m{row}" for row in range(MERCHANTS)])
    merchants.to_csv(folder / "merchants.csv", index=False)
    pairs = {
        "account": [f"a{row}" for row in random.integers(0, ACCOUNTS, PAYMENTS)],
        "merchant": [f"m{row}" for row in random.integers(0, MERCHANTS, PAYMENTS)],
    }
    payments = draw_payments(PAYMENTS, random, _CURRENCIES)
    pd.DataFrame(pairs).join(payments).to_csv(folder / "payments.csv", index=False)
    draw_accounts(NEW, random, [*_COUNTRIES, "XX", "NZ"]).to_csv(folder / "new_accounts.csv", index=False)


def build(folder: Path) -> Graph:
    """The graph of the files; labels are left out, and codes are texts."""
    return Graph.from_parquet(
        {
            "account": NodeFile(folder / "accounts.csv", "id", exclude=["is_fraud"], columns=["*"]),
            "merchant": NodeFile(folder / "merchants.csv", "id", columns=["*", "mcc:text"]),
        },
        {
            PAYS: EdgeFile(folder / "payments.csv", "account", "merchant", columns=_PAYMENT),
            PAID_BY: EdgeFile(folder / "payments.csv", "merchant", "account", columns=_PAYMENT),
        },
    ).save(folder / "graph")


def fit(graph: Graph) -> dict[Any, Any]:
    """A transformer for each node type and edge type, fitted on the graph's columns."""
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    codes = OneHotEncoder(handle_unknown="ignore")
    payment = [("numbers", numbers, ["amount", "time"]), ("codes", codes, ["currency"])]
    parts: dict[Any, Any] = {
        PAYS: payment,
        PAID_BY: payment,
        "account": [
            ("numbers", numbers, ["income", "opened"]),
            ("codes", codes, ["country"]),
            ("flags", SimpleImputer(strategy="most_frequent", add_indicator=True), ["verified"]),
        ],
        "merchant": [("numbers", StandardScaler(), ["turnover"]), ("codes", codes, ["mcc"])],
    }
    return {name: ColumnTransformer(each).fit(graph.frame(name)) for name, each in parts.items()}


def transformed(fitted: Any, frame: pd.DataFrame) -> Tensor:
    """The rows that a transformer makes of a frame, float32 [n, d]."""
    rows = fitted.transform(frame)
    return torch.tensor(
        np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows), dtype=torch.float32
    )


class Net(nn.Module):
    """Two layers of attention over the payments in both directions, and a logit for each account."""

    def __init__(self, account: int, merchant: int, payment: int) -> None:
        super().__init__()

        def layer(account: int, merchant: int) -> HeteroConv:
            options: Any = {"edge_dim": payment, "add_self_loops": False, "residual": True}
            pays = GATv2Conv((account, merchant), 32, **options)
            return HeteroConv({PAYS: pays, PAID_BY: GATv2Conv((merchant, account), 32, **options)})

        self.first, self.second, self.head = layer(account, merchant), layer(32, 32), nn.Linear(32, 1)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Any, edge_attr_dict: Any) -> Tensor:
        """Float32 [accounts, 1]."""
        x_dict = self.first(x_dict, edge_index_dict, edge_attr_dict=edge_attr_dict)
        x_dict = {name: rows.relu() for name, rows in x_dict.items()}
        found = self.second(x_dict, edge_index_dict, edge_attr_dict=edge_attr_dict)
        logits: Tensor = self.head(found["account"].relu())
        return logits


def train(x: dict[str, Tensor], edges: Any, labels: Tensor, epochs: int) -> Net:
    """Train on all accounts; `edges` are the index and the attributes."""
    model = Net(x["account"].shape[1], x["merchant"].shape[1], edges[1][PAYS].shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x, *edges)[:, 0], labels).backward()
        optimizer.step()
    return model.eval()


def as_fitted(payments: pd.DataFrame) -> pd.DataFrame:
    """Payments as the transformer was fitted, by pandas: a time is seconds since 1970."""
    since = pd.to_datetime(payments["time"], utc=True) - pd.Timestamp(0, tz="UTC")
    currency = payments["currency"].astype(object).where(payments["currency"].notna(), np.nan)
    return payments[_PAYMENT].assign(time=since / pd.Timedelta(1, "s"), currency=currency)


def edges_of(
    folder: Path,
    fitted: Any,
    neighbors: list[list[int]] | None = None,
    new: pd.DataFrame | None = None,
) -> tuple[dict[Any, Tensor], dict[Any, Tensor]]:
    """Edges of the files as PyG reads them, and their attributes; new accounts and merchants come last.

    Known merchants do not read new accounts: a request does not change the graph.

    Args:
        new: payments of new accounts, in the order of `neighbors`.
    """
    table = pd.read_csv(folder / "payments.csv")
    pays = table[["account", "merchant"]].apply(lambda column: column.str[1:].astype(int)).to_numpy().T
    rows = transformed(fitted[PAYS], as_fitted(table))
    index, attr = {PAYS: pays, PAID_BY: pays[::-1]}, {PAYS: rows, PAID_BY: rows}
    if neighbors is not None and new is not None:
        ends = np.array([(ACCOUNTS + row, m) for row, each in enumerate(neighbors) for m in each]).T
        more, at_new = transformed(fitted[PAYS], as_fitted(new)), ends[1] >= MERCHANTS
        index[PAYS] = np.concatenate([pays, ends[:, at_new]], axis=1)
        index[PAID_BY] = np.concatenate([pays[::-1], ends[::-1]], axis=1)
        attr = {PAYS: torch.cat([rows, more[at_new]]), PAID_BY: torch.cat([rows, more])}
    return {key: torch.tensor(each.copy()) for key, each in index.items()}, attr


def read_new(folder: Path) -> tuple[list[dict[str, Any]], pd.DataFrame, FloatArray]:
    """New accounts as requests have them, as the transformer was fitted (by pandas), and their labels."""
    frame = pd.read_csv(folder / "new_accounts.csv", keep_default_na=False, dtype=str)
    parsers: dict[str, Any] = {"income": float, "verified": lambda cell: cell == "true"}
    rows = [
        {
            name: None if not cell else parsers.get(name, str)(cell)
            for name, cell in row.items()
            if name != "is_fraud"
        }
        for row in frame.to_dict("records")
    ]
    read = pd.read_csv(folder / "new_accounts.csv", parse_dates=["opened"])
    read["opened"] = (read["opened"] - pd.Timestamp(0)) / pd.Timedelta(1, "s")
    read["verified"] = read["verified"].astype(object).map({True: 1.0, False: 0.0})
    return rows, read, read["is_fraud"].to_numpy(np.float32)


def described(
    rows: list[dict[str, Any]], merchants: pd.DataFrame, neighbors: list[list[int]], payments: pd.DataFrame
) -> tuple[list[InlineNode], list[ContextNode]]:
    """New accounts and the new merchants at which they paid, with the payments, as a request has them."""
    paid = iter(payments.to_dict("records"))
    of = [{merchant: next(paid) for merchant in each} for each in neighbors]
    new = [
        InlineNode(
            columns=row,
            id=f"new{at}",
            neighbors={"": [f"m{merchant}" for merchant in each]},
            edge_attr={"": list(each.values())},
        )
        for at, (row, each) in enumerate(zip(rows, of, strict=True))
    ]
    context = []
    for number, row in enumerate(merchants.to_dict("records"), MERCHANTS):
        payers = [at for at, each in enumerate(of) if number in each]
        context.append(
            ContextNode(
                type="merchant",
                id=f"m{number}",
                columns={str(name): value for name, value in row.items()},
                neighbors={"": [f"new{at}" for at in payers]},
                edge_attr={"": [of[at][number] for at in payers]},
            )
        )
    return new, context


def run(epochs: int, seed: int, console: Console) -> dict[str, Any]:
    """The whole example; returns the figures."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory(prefix="hopline-fraud-") as name:
        folder = Path(name)
        write_files(folder, random)
        graph = build(folder)
        fitted = fit(graph)
        x = {name: transformed(fitted[name], graph.frame(name)) for name in ("account", "merchant")}
        labels = torch.tensor(pd.read_csv(folder / "accounts.csv")["is_fraud"].to_numpy(np.float32))
        edges = edges_of(folder, fitted)
        model = train(x, edges, labels, epochs)
        report = hopline.package(
            model,
            graph,
            folder / "models",
            name="fraud",
            fanouts=[-1, -1],
            task="binary",
            target="account",
            preprocess=fitted,
        )
        console.print(f"packaged in {report.seconds:.1f} s: {'; '.join(report.notes[1:])}")
        rows, frame, frauds = read_new(folder)
        most = MERCHANTS + NEW_MERCHANTS
        neighbors = [random.choice(most, random.integers(1, 6), replace=False).tolist() for _ in rows]
        merchants = draw_merchants(NEW_MERCHANTS, random, [*_CODES, "9999"])
        payments = draw_payments(sum(map(len, neighbors)), random, [*_CURRENCIES, "CHF"])
        with torch.no_grad():
            expected = model(x, *edges).numpy()
            exchanged = model(x, edges[0], {key: rows.flip(0) for key, rows in edges[1].items()}).numpy()
            added = {"account": frame, "merchant": merchants}
            more = {name: torch.cat([x[name], transformed(fitted[name], added[name])]) for name in x}
            unseen = model(more, *edges_of(folder, fitted, neighbors, payments)).numpy()[ACCOUNTS:]
        with serving(folder / "graph", folder / "models") as served, hopline.Client(served.url) as client:
            nodes = [f"a{row}" for row in range(ACCOUNTS)]
            known = client.score("fraud", nodes, outputs=["logits"]).outputs["logits"]
            new, context = described(rows, merchants, neighbors, payments)
            found = client.score_inline("fraud", new, context=context, outputs=["logits"]).outputs["logits"]
    return {
        "max_abs_diff": float(np.abs(known.reshape(-1, 1) - expected).max()),
        "unseen_diff": float(np.abs(found.reshape(-1, 1) - unseen).max()),
        "at_new": sum(max(each) >= MERCHANTS for each in neighbors),
        "with_null": sum(None in row.values() for row in rows),
        "by_payments": float(np.abs(exchanged - expected).max()),
        "with_unseen": sum(row["country"] in ("XX", "NZ") for row in rows),
        "auc": round(float(roc_auc_score(frauds, found.reshape(-1))), 3),
        "epochs": epochs,
    }


def failures(figures: dict[str, Any]) -> list[str]:
    """Faults that --check finds in the figures, in words; empty for none."""
    found = [
        f"{name} is {figures[name]:.2e}; {LARGEST_DIFFERENCE:.0e} is allowed"
        for name in ("max_abs_diff", "unseen_diff")
        if not figures[name] <= LARGEST_DIFFERENCE
    ]
    if not min(figures["with_null"], figures["with_unseen"], figures["at_new"]) >= 100:
        found.append("too few new accounts have an empty cell, an unseen category or a new merchant")
    if not figures["by_payments"] > 0.01:
        found.append("the model does not read the payments")
    if not figures["auc"] > 0.6:
        found.append("the model does not tell frauds from others")
    return found


def main() -> int:
    """Run the example; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 unless the served answers are right"
    )
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # People read stderr, programs the one line on stdout.
    console = Console(stderr=True, highlight=False)
    figures = run(arguments.epochs, arguments.seed, console)
    wrong = failures(figures) if arguments.check else []
    for text in wrong:
        console.print(f"[bold red]check failed:[/bold red] {text}")
    print(json.dumps(figures))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
