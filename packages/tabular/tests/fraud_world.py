"""A packaged model over accounts and merchants with columns, and PyG's answers on the transformed frame."""

import math

import numpy as np
import pandas as pd
import torch

import hopline
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.types import ScoreRequest
from packages.tabular.tests import fraud_graph as fraud

NEW = 1_000
#: A new account as a request has it, and as a frame has it.
ROW = {
    "amount": 12.5, "country": "JP", "mcc": "5411", "age": 44, "active": True,
    "opened": "2024-01-31T13:45:00Z",
}  # fmt: skip
FRAME = pd.DataFrame(
    {
        **{name: [value] for name, value in ROW.items()},
        "opened": [pd.Timestamp("2024-01-31T13:45:00Z")],
    }
)


class World:
    """A packaged model, and what it was made of."""

    def __init__(self, folder):
        self.ids = [f"a{row}" for row in range(fraud.ACCOUNTS)]
        self.frame = fraud.accounts()
        self.graph = fraud.graph_of(self.frame, fraud.merchants(), self.ids).save(folder / "graph")
        self.fitted = fraud.transformers(self.graph)
        self.x = fraud.features(self.fitted, self.graph)
        self.module = fraud.Net([rows.shape[1] for rows in self.x.values()]).eval()
        self.report = hopline.package(
            self.module,
            self.graph,
            folder / "models",
            name="risk",
            fanouts=[-1, -1],
            task="multiclass",
            target="account",
            preprocess=self.fitted,
        )

    def pyg(self, more=None, neighbors=()):
        """Logits of PyG on the transformed frame, of all accounts and of further ones."""
        x, edges = dict(self.x), fraud.edge_indices()
        if more is not None:
            rows = fraud.dense(self.fitted["account"].transform(more))
            x["account"] = torch.cat([x["account"], rows])
            at = [fraud.ACCOUNTS + row for row, each in enumerate(neighbors) for _ in each]
            edges = fraud.edge_indices(([one for each in neighbors for one in each], at))
        with torch.no_grad():
            return self.module(x, edges).numpy()

    def answerer(self, graph=None, report=None):
        report = report or self.report
        return Answerer(load_model(report.path, report.spec, graph or self.graph), ("logits",), 999)


def ask(answerer, **request):
    (found,) = answerer.answer([ScoreRequest("risk", **request)])
    if isinstance(found, Exception):
        raise found
    return found.outputs["logits"]


def as_sent(row):
    """A row of a frame as a request has it."""
    return {name: _sent(value) for name, value in row.items()}


def _sent(value):
    if value is None or value is pd.NaT or value != value:
        return None
    if isinstance(value, pd.Timestamp):
        return value.isoformat()
    return value.item() if isinstance(value, np.generic) else value


def fitted_form(frame):
    """A frame as `StoredColumns.frame` has it, made by other means: NaN, seconds since 1970, 0 and 1."""
    found = frame.copy()
    found["active"] = [math.nan if value is None else float(value) for value in frame["active"]]
    epoch = pd.Timestamp(0, tz="UTC")
    found["opened"] = [
        math.nan if pd.isna(each) else (each - epoch).total_seconds() for each in frame["opened"]
    ]
    for name in ("country", "mcc"):
        found[name] = [(value or "").strip(" \t\u2003") or math.nan for value in frame[name]]
    return found


def new_accounts(seed=9):
    """Rows that the graph does not have, some with unseen countries and codes, and their merchants."""
    frame = fraud.accounts(NEW, seed, countries=[*fraud.COUNTRIES, "XX", ""])
    frame.loc[::7, "mcc"] = "9999"
    random = np.random.default_rng(seed)
    return frame, [random.integers(0, fraud.MERCHANTS, random.integers(0, 5)).tolist() for _ in range(NEW)]
