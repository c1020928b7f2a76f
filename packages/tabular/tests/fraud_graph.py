"""Accounts and merchants with columns of every type, a graph of them, and a trained-looking module."""

import numpy as np
import pandas as pd
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from torch import nn
from torch_geometric.nn import HeteroConv, SAGEConv

from hopline.graph import EdgeTable, Graph, NodeTable

ACCOUNTS, MERCHANTS = 300, 40
COUNTRIES = ["DE", "JP", "FR", "BR", "US"]
PAYS, PAID_BY = ("account", "pays", "merchant"), ("merchant", "paid_by", "account")


def accounts(count=ACCOUNTS, seed=0, countries=COUNTRIES):
    """A frame with a float, a code, a text, an integer, a boolean and a time; some cells are missing."""
    random = np.random.default_rng(seed)

    def some(values):
        return [None if random.random() < 0.1 else value for value in values]

    opened = pd.Timestamp("2020-01-01", tz="UTC") + pd.to_timedelta(random.integers(0, 10**8, count), "s")
    return pd.DataFrame(
        {
            "amount": pd.Series(some(random.lognormal(3, 1, count).tolist()), dtype="float64"),
            "country": pd.Series(some(random.choice(countries, count).tolist()), dtype=object),
            "mcc": random.choice(["5411", "5812", "0742"], count),
            "age": random.integers(18, 90, count),
            "active": pd.Series(some((random.random(count) < 0.7).tolist()), dtype=object),
            "opened": pd.Series(some(list(opened)), dtype="datetime64[us, UTC]"),
        }
    )


def merchants(seed=0):
    random = np.random.default_rng(seed + 1)
    return pd.DataFrame(
        {
            "risk": random.normal(0, 3, MERCHANTS),
            "category": random.choice(["food", "fuel", "toys"], MERCHANTS),
            "unread": random.normal(size=MERCHANTS),
        }
    )


def pairs(seed=0):
    random = np.random.default_rng(seed + 2)
    return random.integers(0, ACCOUNTS, 900), random.integers(0, MERCHANTS, 900)


def graph_of(account_frame, merchant_frame, account_ids=None):
    """The graph; edges are row numbers."""
    account, merchant = pairs()
    return Graph.from_tables(
        {
            "account": NodeTable(columns=account_frame, column_types={"mcc": "text"}, ids=account_ids),
            "merchant": NodeTable(columns=merchant_frame),
        },
        {
            PAYS: EdgeTable((account, merchant), by_row=True),
            PAID_BY: EdgeTable((merchant, account), by_row=True),
        },
    )


def transformers(graph):
    """Fitted on the graph's columns."""
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    account = ColumnTransformer(
        [
            ("numbers", numbers, ["amount", "age", "opened"]),
            ("codes", OneHotEncoder(handle_unknown="ignore"), ["country", "mcc"]),
            ("flags", SimpleImputer(strategy="most_frequent"), ["active"]),
        ]
    )
    ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    merchant = ColumnTransformer(
        [("numbers", StandardScaler(), ["risk"]), ("codes", ordinal, ["category"])]
    )
    return {
        "account": account.fit(graph.frame("account")),
        "merchant": merchant.fit(graph.frame("merchant")),
    }


def features(fitted, graph):
    """Node type -> what `transform` gives for the graph's columns, as a module reads it."""
    frames = {name: graph.frame(name) for name in fitted}
    return {name: dense(fitted[name].transform(frames[name])) for name in fitted}


def dense(found):
    return torch.tensor(
        np.asarray(found.toarray() if hasattr(found, "toarray") else found), dtype=torch.float32
    )


class Net(nn.Module):
    """Two layers over both edge types."""

    def __init__(self, widths):
        super().__init__()
        torch.manual_seed(0)

        def layer(account, merchant, out):
            return HeteroConv(
                {PAYS: SAGEConv((account, merchant), out), PAID_BY: SAGEConv((merchant, account), out)}
            )

        self.first, self.second = layer(*widths, 16), layer(16, 16, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, x_dict, edge_index_dict):
        x_dict = {name: x.relu() for name, x in self.first(x_dict, edge_index_dict).items()}
        return self.head(self.second(x_dict, edge_index_dict)["account"])


def edge_indices(more=((), ())):
    """Edges as a module reads them, with further (merchant, account) pairs."""
    account, merchant = pairs()
    paid = np.stack([np.concatenate([merchant, more[0]]), np.concatenate([account, more[1]])])
    return {PAYS: torch.tensor(np.stack([account, merchant])), PAID_BY: torch.tensor(paid.astype(np.int64))}
