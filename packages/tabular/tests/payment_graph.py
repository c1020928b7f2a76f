"""Accounts that pay merchants, with columns of every type on the payments, and a module that reads them."""

import numpy as np
import pandas as pd
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn
from torch_geometric.nn import GATv2Conv

from hopline.graph import EdgeTable, Graph, NodeTable
from packages.tabular.tests.fraud_graph import ACCOUNTS, MERCHANTS, dense, pairs

PAYS, PAID_BY = ("account", "pays", "merchant"), ("merchant", "paid_by", "account")
CURRENCIES = ["EUR", "JPY", "USD"]


def payments(count=900, seed=0, currencies=CURRENCIES):
    """A row for each of `pairs()`; some cells are missing."""
    random = np.random.default_rng(seed + 50)

    def some(values):
        return [None if random.random() < 0.1 else value for value in values]

    time = pd.Timestamp("2024-01-01", tz="UTC") + pd.to_timedelta(random.integers(0, 10**7, count), "s")
    return pd.DataFrame(
        {
            "amount": pd.Series(some(random.lognormal(3, 1, count).tolist()), dtype="float64"),
            "currency": pd.Series(some(random.choice(currencies, count).tolist()), dtype=object),
            "items": random.integers(1, 9, count),
            "online": pd.Series(some((random.random(count) < 0.5).tolist()), dtype=object),
            "paid_at": pd.Series(some(list(time)), dtype="datetime64[us, UTC]"),
        }
    )


def rows_of(num_nodes, seed):
    return np.random.default_rng(seed).normal(size=(num_nodes, 3)).astype(np.float32)


def graph_of(frame, both_directions=False, ends=None, accounts=0, **options):
    """The graph of payments, in both directions: as a type of their own, or a derived one.

    Args:
        frame: a column "payment" has the ids of payments.
        accounts: further ones.
    """
    names = [f"a{row}" for row in range(ACCOUNTS + accounts)]
    features = np.concatenate([rows_of(ACCOUNTS, 1), np.ones((accounts, 3), np.float32)])
    account, merchant = pairs() if ends is None else ends
    own = {"id": "payment"} if "payment" in frame else {}
    edges = {PAYS: EdgeTable((account, merchant), columns=frame, by_row=True, **own, **options)}
    if not both_directions:
        frame = frame.drop(columns=[*own.values()])
        edges[PAID_BY] = EdgeTable((merchant, account), columns=frame, by_row=True, **options)
    return Graph.from_tables(
        {"account": NodeTable(features, ids=names), "merchant": NodeTable(rows_of(MERCHANTS, 2))},
        edges,
        both_directions=both_directions,
    )


def transformer(graph):
    """Fitted on the columns of the payments."""
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    parts = [
        ("numbers", numbers, ["amount", "items", "paid_at"]),
        ("codes", OneHotEncoder(handle_unknown="ignore"), ["currency"]),
        ("flags", SimpleImputer(strategy="most_frequent"), ["online"]),
    ]
    return ColumnTransformer(parts).fit(graph.frame(PAYS))


def fitted_form(frame):
    """A frame as the transformer was fitted, made by other means: NaN, seconds since 1970, 0 and 1."""
    found, epoch = frame.copy(), pd.Timestamp(0, tz="UTC")
    found["online"] = [np.nan if value is None else float(value) for value in frame["online"]]
    found["currency"] = [(value or "").strip() or np.nan for value in frame["currency"]]
    found["paid_at"] = [
        np.nan if pd.isna(each) else (each - epoch).total_seconds() for each in frame["paid_at"]
    ]
    return found


class Net(nn.Module):
    """Two layers with attention over the payments in both directions, which read their attributes.

    Args:
        turns: edges against their direction are those of the first type.
    """

    def __init__(self, width, turns=False):
        super().__init__()
        torch.manual_seed(0)
        self.turns = turns
        self.convs = nn.ModuleList(
            GATv2Conv((dim, dim), 8, edge_dim=width, add_self_loops=False) for dim in (3, 3, 8)
        )
        self.head = nn.Linear(8, 2)

    def forward(self, x_dict, edge_index_dict, edge_attr_dict):
        account, merchant = x_dict["account"], x_dict["merchant"]
        pays = edge_index_dict[PAYS]
        paid = pays.flip(0) if self.turns else edge_index_dict[PAID_BY]
        back = edge_attr_dict[PAYS] if self.turns else edge_attr_dict[PAID_BY]
        first = self.convs[0]((account, merchant), pays, edge_attr_dict[PAYS]).relu()
        other = self.convs[1]((merchant, account), paid, back).relu()
        return self.head(self.convs[2]((first, other), paid, back))


def pyg(module, fitted, frame, ends=None, new=0, more=None, more_ends=((), ())):
    """Logits of PyG on the transformed frame, in the order of the frame's rows.

    Args:
        new: further accounts, which are paid for by rows of `more`; merchants do not read these.
    """
    account, merchant = pairs() if ends is None else ends
    rows = dense(fitted.transform(fitted_form(frame)))
    pays, paid = np.stack([account, merchant]), np.stack([merchant, account])
    back = rows
    if more is not None:
        back = torch.cat([rows, dense(fitted.transform(fitted_form(more)))])
        extra = np.stack([more_ends[1], np.asarray(more_ends[0]) + ACCOUNTS])
        paid = np.concatenate([paid, extra], axis=1)
    x = {
        "account": torch.tensor(np.concatenate([rows_of(ACCOUNTS, 1), np.ones((new, 3), np.float32)])),
        "merchant": torch.tensor(rows_of(MERCHANTS, 2)),
    }
    edges = {PAYS: torch.tensor(pays), PAID_BY: torch.tensor(paid.astype(np.int64))}
    with torch.no_grad():
        return module(x, edges, {PAYS: rows, PAID_BY: back}).numpy()
