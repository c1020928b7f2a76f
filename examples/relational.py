"""Five tables with times, RelBench's temporal encoder, and answers as of any time.

    python -m examples.relational            # shows what happens
    python -m examples.relational --check    # and fails unless the served answers are right

The tables are generated: customers, products, orders, lines of orders, reviews. A key into another table
is an edge type, with its reverse. Rows exist from their time on. Two models answer whether a customer
orders within 60 days: a temporal SAGE over all tables, and one with attention. Each is asked for every
customer at twenty times, and at the latest time. The oracle is the module on one subgraph for each customer
and time: what `NeighborLoader(time_attr="time", input_time=...)` of PyG makes with all neighbours.

A third package of the SAGE reads orders and reviews of the last 60 days only, and a fourth samples 3 and 2
of them. Sampled answers are compared with the module on the edges that `hopline export` writes for each
layer. That these are drawn as PyG draws them, each neighbour equally often, is tested with 200 salts: for
nodes with n candidates of which k are drawn, the counts c of the places in the list have the statistic
sum (c - m k/n)^2 / (m k/n (1 - k/n)) (n - 1) / n, for m draws, which is chi-square with n - 1 degrees of
freedom for sampling without replacement. All n together give one p-value; below 0.001 the check fails.
The last line printed is one JSON object:

    sage_diff, attention_diff   largest difference of logits, of all customers at twenty times
    sage_now, attention_now     without `as_of`: at the latest time of the graph, which the answer names
    window_diff                 with windows, of all customers at twenty times
    sampled_diff                with windows and fanouts, of all customers at two times
    uniform_p, window_p         p-values of draws among all existing orders, and among those of the window
    first_p                     of a sampler that takes the first k, which the test must find: below 0.001
    auc                         of the temporal SAGE on customers at a time after training
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
from scipy.stats import chi2
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, HeteroConv, LayerNorm, PositionalEncoding, SAGEConv

import hopline
from hopline.graph import Graph
from hopline.sampling import BlockBuffers, Sampler, layer_key
from hopline.types import IdArray
from hopline_demo.process import serving
from hopline_export.run import export

LARGEST_DIFFERENCE = 1e-4
DAY, BEGIN, DAYS = 86_400, 1_600_000_000, 500
COUNTS = {"customer": 300, "product": 60, "order": 1_500, "line": 3_000, "review": 800}
#: (table, key, table that it refers to).
KEYS = (
    ("order", "customer_id", "customer"),
    ("line", "order_id", "order"),
    ("line", "product_id", "product"),
    ("review", "customer_id", "customer"),
    ("review", "product_id", "product"),
)
TIMED = ("customer", "order", "line", "review")
_WIDTH, _COLUMNS, _AHEAD = 16, 5, 60 * DAY
#: Of edges into customers; a probability below which draws are not those of PyG; salts of the sampler.
WINDOW, ALPHA, SALTS = 60 * DAY, 1e-3, 200
WINDOWED = {("order", "customer_id", "customer"), ("review", "customer_id", "customer")}
ORDERS = "order__customer_id__customer"


def draw(seed: int) -> HeteroData:
    """The tables as PyG has them: rows, times and both directions of each key."""
    rng = np.random.default_rng(seed)
    rows, times = {name: rng.normal(size=(n, _COLUMNS)).astype("f4") for name, n in COUNTS.items()}, {}
    times["customer"] = BEGIN + rng.integers(0, 100 * DAY, COUNTS["customer"])
    rate = rng.gamma(0.6, 1.0, COUNTS["customer"])  # some order often, many hardly
    keys = {(a, key): rng.integers(0, COUNTS[b], COUNTS[a]) for a, key, b in KEYS}
    keys["order", "customer_id"] = rng.choice(COUNTS["customer"], COUNTS["order"], p=rate / rate.sum())
    for name, key in (("order", "customer_id"), ("review", "customer_id")):
        since = times["customer"][keys[name, key]]
        times[name] = rng.integers(since, BEGIN + DAYS * DAY)
    times["line"] = times["order"][keys["line", "order_id"]]
    data = HeteroData()
    for name, own in rows.items():
        data[name].x = torch.from_numpy(own)
        if name in times:
            data[name].time = torch.from_numpy(times[name])
    for a, key, b in KEYS:
        ends = torch.from_numpy(np.stack([np.arange(COUNTS[a]), keys[a, key]]))
        data[a, key, b].edge_index, data[b, f"rev_{key}", a].edge_index = ends, ends.flip(0)
    return data


class HeteroTemporalEncoder(nn.Module):
    """RelBench's encoder of ages, in days."""

    def __init__(self, node_types: tuple[str, ...], channels: int) -> None:
        super().__init__()
        self.encoder_dict = nn.ModuleDict({name: PositionalEncoding(channels) for name in node_types})
        self.lin_dict = nn.ModuleDict({name: nn.Linear(channels, channels) for name in node_types})

    def forward(self, seed_time: Tensor, time_dict: Any, batch_dict: Any) -> dict[str, Tensor]:
        """Rows by type, float32 [n, channels]."""
        out_dict: dict[str, Tensor] = {}
        for node_type, time in time_dict.items():
            rel_time = seed_time[batch_dict[node_type]] - time
            rel_time = rel_time / (60 * 60 * 24)
            out_dict[node_type] = self.lin_dict[node_type](self.encoder_dict[node_type](rel_time))
        return out_dict


class Model(nn.Module):
    """Two layers over all keys; reads a batch of PyG's loader."""

    def __init__(self, edge_types: Any, *, attention: bool) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({name: nn.Linear(_COLUMNS, _WIDTH) for name in COUNTS})
        self.temporal_encoder = HeteroTemporalEncoder(TIMED, _WIDTH)

        def conv() -> nn.Module:
            ends = (_WIDTH, _WIDTH)
            return (
                GATConv(ends, _WIDTH, add_self_loops=False)
                if attention
                else SAGEConv(ends, _WIDTH, aggr="sum")
            )

        self.convs = nn.ModuleList(
            HeteroConv({edge_type: conv() for edge_type in edge_types}, aggr="sum") for _ in range(2)
        )
        self.norms = nn.ModuleList(
            nn.ModuleDict({name: LayerNorm(_WIDTH, mode="node") for name in COUNTS}) for _ in range(2)
        )
        self.head = nn.Linear(_WIDTH, 1)

    def forward(self, data: HeteroData) -> Tensor:
        """Logits of the seeds, float32 [seeds, 1]."""
        seed_time = data["customer"].seed_time
        x_dict = {name: self.encoder[name](x) for name, x in data.x_dict.items()}
        for name, age in self.temporal_encoder(seed_time, data.time_dict, data.batch_dict).items():
            x_dict[name] = x_dict[name] + age
        norms: Any = self.norms
        for conv, norm in zip(self.convs, norms, strict=True):
            x_dict = conv(x_dict, data.edge_index_dict)
            x_dict = {name: norm[name](x).relu() for name, x in x_dict.items()}
        logits: Tensor = self.head(x_dict["customer"][: seed_time.size(0)])
        return logits


def layered(model: Model, data: HeteroData) -> Tensor:
    """As `model(data)`, where each layer reads the edges that are marked as its own."""
    edges = [
        {key: data[key].edge_index[:, data[key].layers[:, at]] for key in data.edge_types} for at in (0, 1)
    ]
    norms: Any = model.norms
    seed_time = data["customer"].seed_time
    x_dict = {name: model.encoder[name](x) for name, x in data.x_dict.items()}
    for name, age in model.temporal_encoder(seed_time, data.time_dict, data.batch_dict).items():
        x_dict[name] = x_dict[name] + age
    for conv, norm, own in zip(model.convs, norms, edges, strict=True):
        x_dict = {name: norm[name](x).relu() for name, x in conv(x_dict, own).items()}
    logits: Tensor = model.head(x_dict["customer"][: seed_time.size(0)])
    return logits


def batch_of(
    data: HeteroData, seeds: IdArray, times: IdArray, hops: int = 2, window: int | None = None
) -> HeteroData:
    """One subgraph for each customer, of the rows that exist at its time: a batch of PyG's loader.

    Args:
        seeds, times: int64 [n].
        window: of edges of the types `WINDOWED`, in seconds.
    """
    # a row of subgraph k has the number k * most + row
    most, number = max(COUNTS.values()), np.arange(len(seeds))
    found = {name: [np.empty(0, np.int64)] for name in COUNTS}
    found["customer"], front = [number * most + seeds], {"customer": number * most + seeds}
    edges: dict[Any, list[IdArray]] = {key: [np.empty((2, 0), np.int64)] for key in data.edge_types}
    for _ in range(hops):
        below: dict[str, list[IdArray]] = {name: [] for name in COUNTS}
        for source, relation, destination in data.edge_types:
            if destination not in front:
                continue
            index = data[source, relation, destination].edge_index.numpy()
            index = index[:, np.argsort(index[1], kind="stable")]
            begin, end = (
                index[1].searchsorted(front[destination] % most, side) for side in ("left", "right")
            )
            places = np.concatenate([np.arange(a, b) for a, b in zip(begin, end, strict=True)])
            owner = np.repeat(front[destination], end - begin)
            of, rows = owner // most, index[0][places.astype(np.int64)]
            if source in TIMED:
                own_times = data[source].time.numpy()[rows]
                exists = own_times <= times[of]
                if window is not None and (source, relation, destination) in WINDOWED:
                    exists &= own_times > times[of] - window
                owner, of, rows = owner[exists], of[exists], rows[exists]
            edges[source, relation, destination].append(np.stack([of * most + rows, owner]))
            below[source].append(of * most + rows)
        front = {}
        for name, parts in below.items():
            new = np.setdiff1d(np.concatenate([*parts, np.empty(0, np.int64)]), np.concatenate(found[name]))
            found[name].append(new)
            front |= {name: new} if len(new) else {}
    batch, places_of = HeteroData(), {}
    for name, parts in found.items():
        numbers = np.concatenate(parts)  # seeds first
        order = np.argsort(numbers)
        places_of[name] = numbers[order], order
        batch[name].x, batch[name].batch = data[name].x[numbers % most], torch.from_numpy(numbers // most)
        if name in TIMED:
            batch[name].time = data[name].time[numbers % most]
    for key, listed in edges.items():
        ends = np.concatenate(listed, axis=1)
        rows = [
            places_of[name][1][places_of[name][0].searchsorted(ends[side])]
            for side, name in ((0, key[0]), (1, key[2]))
        ]
        batch[key].edge_index = torch.from_numpy(np.stack(rows))
    batch["customer"].seed_time = torch.from_numpy(times)
    return batch


def labels(data: HeteroData, seeds: IdArray, times: IdArray) -> IdArray:
    """1 for a customer with an order in the 60 days after the time."""
    ends, placed = (
        data["order", "customer_id", "customer"].edge_index[1].numpy(),
        data["order"].time.numpy(),
    )
    return np.array(
        [
            bool(((ends == a) & (placed > t) & (placed <= t + _AHEAD)).any())
            for a, t in zip(seeds, times, strict=True)
        ]
    ).astype(np.int64)


def trained(data: HeteroData, steps: int, *, attention: bool) -> Model:
    """A model trained on random customers at random times before the last 150 days."""
    torch.manual_seed(0)
    rng, model = np.random.default_rng(1), Model(data.edge_types, attention=attention)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        seeds = rng.integers(0, COUNTS["customer"], 64)
        times = BEGIN + DAY * rng.integers(100, DAYS - 150, 64)
        wanted = torch.from_numpy(labels(data, seeds, times)).float()[:, None]
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(
            model(batch_of(data, seeds, times)), wanted
        ).backward()
        optimizer.step()
    return model.eval()


def p_value(graph: Graph, moment: int, window: int | None, *, first: bool = False) -> float:
    """Probability of draws as uneven as the sampler's, if each existing order is drawn equally often.

    Args:
        first: take the first k of each list instead, as a sampler that is wrong.
    """
    orders, fanout = graph.edges[ORDERS], 3
    assert orders.time is not None
    nodes, buffers = np.arange(COUNTS["customer"]), BlockBuffers()
    starts, times = orders.starts(nodes), np.asarray(orders.time)
    ends = starts + orders.degree(nodes)
    since = -(2**62) if window is None else moment - window
    low = [a + (times[a:b] <= since).sum() for a, b in zip(starts, ends, strict=True)]
    high = [a + (times[a:b] <= moment).sum() for a, b in zip(starts, ends, strict=True)]
    sizes = np.asarray(high) - np.asarray(low)
    counts = {n: np.zeros(n) for n in np.unique(sizes[sizes > fanout]).tolist()}
    for salt in range(SALTS):
        sampler = Sampler(orders, fanout, "uniform", layer_key(salt, 1, ORDERS), None, window)
        block = sampler.sample(nodes, buffers, moment)
        for node, size in enumerate(sizes.tolist()):
            if size > fanout:
                drawn = block.positions[block.offsets[node] : block.offsets[node + 1]] - low[node]
                counts[size][range(fanout) if first else drawn] += 1
    statistic, freedom = 0.0, 0
    for size, each in counts.items():
        share, draws = fanout / size, each.sum() / fanout
        spread = draws * share * (1 - share) * size / (size - 1)
        statistic, freedom = statistic + ((each - draws * share) ** 2).sum() / spread, freedom + size - 1
    return float(chi2.sf(statistic, freedom))


def run(steps: int, folder: Path, console: Console) -> dict[str, float]:
    """Train, package, serve and compare."""
    data = draw(0)
    graph = Graph.from_pyg(data, node_time="time", time_unit="s").save(folder / "graph")
    models = {name: trained(data, steps, attention=name == "attention") for name in ("sage", "attention")}
    for name, model in models.items():
        report = hopline.package(
            model,
            graph,
            folder / "models",
            name=name,
            fanouts=[-1, -1],
            task="binary",
            target="customer",
        )
        console.print(f"{name}: packaged in {report.seconds:.1f} s")
    windows = {"__".join(key): "60d" for key in WINDOWED}
    reports = {
        name: hopline.package(
            models["sage"],
            graph,
            folder / "models",
            name=name,
            fanouts=fanouts,
            task="binary",
            target="customer",
            windows=windows,
        )
        for name, fanouts in (("window", [-1, -1]), ("sampled", [3, 2]))
    }
    everyone = np.arange(COUNTS["customer"])
    moments = BEGIN + DAY * np.linspace(20, DAYS - 61, 20).astype(np.int64)
    latest = max(int(data[name].time.max()) for name in TIMED)
    figures: dict[str, float] = {}
    with (
        serving(folder / "graph", folder / "models") as served,
        hopline.Client(served.url) as client,
        torch.no_grad(),
    ):
        for name, model in models.items():

            def difference(time: int, as_of: int | None, name: str = name, model: Model = model) -> float:
                wanted = model(batch_of(data, everyone, np.full(len(everyone), time))).numpy()
                answer = client.score(name, everyone.tolist(), outputs=["logits"], as_of=as_of)
                assert answer.as_of == time, "the answer names its time"
                return float(np.abs(answer.outputs["logits"] - wanted).max())

            figures[f"{name}_diff"] = max(difference(time, time) for time in moments.tolist())
            figures[f"{name}_now"] = difference(latest, None)
        figures["window_diff"] = 0.0
        for time in moments.tolist():
            times = np.full(len(everyone), time)
            wanted = models["sage"](batch_of(data, everyone, times, window=WINDOW)).numpy()
            answer = client.score("window", everyone.tolist(), outputs=["logits"], as_of=time)
            difference_of = float(np.abs(answer.outputs["logits"] - wanted).max())
            figures["window_diff"] = max(figures["window_diff"], difference_of)
        seeds = pd.DataFrame(
            {"id": np.tile(everyone, 2), "time": np.repeat(moments[[9, 19]], len(everyone))}
        )
        seeds.to_parquet(folder / "seeds.parquet")
        export(reports["sampled"].path, graph, folder / "seeds.parquet", folder / "out", shard=len(seeds))
        drawn = torch.load(folder / "out" / "graphs" / "part-00000.pt", weights_only=False)
        found = [
            client.score("sampled", everyone.tolist(), outputs=["logits"], as_of=time).outputs["logits"]
            for time in moments[[9, 19]].tolist()
        ]
        wanted = layered(models["sage"], drawn).numpy()
        figures["sampled_diff"] = float(np.abs(np.concatenate(found) - wanted).max())
        scores = client.score("sage", everyone.tolist(), as_of=int(moments[-1])).outputs["probabilities"]
    wanted = labels(data, everyone, np.full(len(everyone), moments[-1]))
    figures["auc"] = float(roc_auc_score(wanted, scores))
    figures["uniform_p"] = p_value(graph, int(moments[-1]), None)
    figures["window_p"] = p_value(graph, int(moments[-1]), WINDOW)
    figures["first_p"] = p_value(graph, int(moments[-1]), None, first=True)
    return figures


def main() -> int:
    """The example; the exit code is 1 with --check if an answer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail unless the served answers are PyG's")
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = run(options.steps, Path(folder), Console(stderr=True))
    print(json.dumps({name: float(f"{value:.3g}") for name, value in figures.items()}))
    worst = max(value for name, value in figures.items() if name.endswith(("diff", "now")))
    is_drawn = min(figures["uniform_p"], figures["window_p"]) > ALPHA > figures["first_p"]
    return int(options.check and not (worst <= LARGEST_DIFFERENCE and figures["auc"] > 0.6 and is_drawn))


if __name__ == "__main__":
    sys.exit(main())
