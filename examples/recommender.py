"""Recommendations from clicks: LightGCN and two towers, trained in PyG, served on a graph that changes.

    python -m examples.recommender            # shows what happens
    python -m examples.recommender --check    # and fails unless the served answers are right

Clicks are generated: each user prefers three of twenty topics, each item has one, and some items are
popular. One click of each user is held out.

`lightgcn` is PyG's class: a table with a row for each user and item, and two hops over the clicks. It is
served on a live graph. A request describes a new user by three clicks; then the same clicks arrive as
events, and the next answer contains them. `towers` has a table of users and one of items, a tower above
each, and no edges; it scores pairs. The last line printed is one JSON object:

    max_abs_diff                largest difference from PyG on the whole graph, of both models
    recall_at_20                share of held-out clicks among the 20 best items, and that of popular items
    new_user_recall_at_20       share of a new user's 20 best items that have the topic of the three clicks
    new_user_diff               its embedding against PyG on the graph with this user
    live_diff                   the same after the clicks arrived as events
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import LightGCN

import hopline
from hopline import Graph
from hopline.types import FloatArray, IdArray, InlineNode
from hopline_demo.process import serving

USERS, ITEMS, TOPICS = 2_000, 600, 20
LARGEST_DIFFERENCE = 1e-4
_CLICKS, _DIM, _BATCH, _BEST = 12, 32, 4096, 20


@dataclass(frozen=True, eq=False)
class Clicks:
    """Who clicked what.

    Attributes:
        users, items: int64 [E], of the clicks to train on; items are counted from 0.
        held_out: int64 [USERS], a further click of each user.
        topics: int64 [ITEMS].
    """

    users: IdArray
    items: IdArray
    held_out: IdArray
    topics: IdArray

    @property
    def edge_index(self) -> Tensor:
        """Both directions, int64 [2, 2 E]; items come after users."""
        one = torch.from_numpy(np.stack([self.users, self.items + USERS]))
        return torch.cat([one, one.flip(0)], dim=1)


def draw(seed: int) -> Clicks:
    """Generate clicks."""
    rng = np.random.default_rng(seed)
    topics = rng.integers(0, TOPICS, ITEMS)
    popular = rng.pareto(2.0, ITEMS) + 0.2
    users, items, held_out = [], [], []
    for user in range(USERS):
        liked = rng.choice(TOPICS, 3, replace=False)
        share = popular * np.where(np.isin(topics, liked), 1.0, 0.02)
        clicked = rng.choice(ITEMS, _CLICKS + 1, replace=False, p=share / share.sum())
        users.append(np.full(_CLICKS, user))
        items.append(clicked[1:])
        held_out.append(clicked[0])
    return Clicks(np.concatenate(users), np.concatenate(items), np.array(held_out), topics)


class Embeddings(nn.Module):
    """The part of LightGCN that a server computes: a row for each node."""

    def __init__(self, model: LightGCN) -> None:
        super().__init__()
        self.model = model

    def forward(self, edge_index: Tensor) -> Tensor:
        """Int64 [2, E] to float32 [n, d]."""
        rows: Tensor = self.model.get_embedding(edge_index)
        return rows


class Towers(nn.Module):
    """Two tables and a tower above each."""

    def __init__(self) -> None:
        super().__init__()
        self.user_emb, self.item_emb = nn.Embedding(USERS, _DIM), nn.Embedding(ITEMS, _DIM)
        self.user = nn.Sequential(nn.Linear(_DIM, _DIM), nn.ReLU(), nn.Linear(_DIM, _DIM))
        self.item = nn.Sequential(nn.Linear(_DIM, _DIM), nn.ReLU(), nn.Linear(_DIM, _DIM))

    def forward(self, edge_index_dict: Any = None) -> dict[str, Tensor]:
        """A row for each user and each item; edges are not read."""
        return {"user": self.user(self.user_emb.weight), "item": self.item(self.item_emb.weight)}


def train_lightgcn(clicks: Clicks, epochs: int, console: Console) -> LightGCN:
    """Train with the ranking loss of PyG's example."""
    model = LightGCN(USERS + ITEMS, _DIM, num_layers=2)
    edges = clicks.edge_index

    def loss(users: Tensor, good: Tensor, bad: Tensor) -> Tensor:
        pairs = torch.stack([users.repeat(2), torch.cat([good, bad]) + USERS])
        right, wrong = model(edges, pairs).chunk(2)
        return model.recommendation_loss(right, wrong, node_id=pairs.unique())

    _train(model, loss, clicks, epochs, "lightgcn", console)
    return model.eval()


def train_towers(clicks: Clicks, epochs: int, console: Console) -> Towers:
    """Train with the same loss."""
    model = Towers()

    def loss(users: Tensor, good: Tensor, bad: Tensor) -> Tensor:
        rows = model()
        right = (rows["user"][users] * rows["item"][good]).sum(1)
        wrong = (rows["user"][users] * rows["item"][bad]).sum(1)
        return -nn.functional.logsigmoid(right - wrong).mean()

    _train(model, loss, clicks, epochs, "towers", console)
    return model.eval()


def _train(model: nn.Module, loss: Any, clicks: Clicks, epochs: int, what: str, console: Console) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    users, items = torch.from_numpy(clicks.users), torch.from_numpy(clicks.items)
    for _ in track(range(epochs), f"training {what}", console=console, disable=not console.is_terminal):
        for some in torch.randperm(len(users)).split(_BATCH):
            optimizer.zero_grad()
            loss(users[some], items[some], torch.randint(0, ITEMS, (len(some),))).backward()
            optimizer.step()


def best(scores: FloatArray, clicks: Clicks) -> NDArray[np.int64]:
    """The best items of each user that the user has not clicked, int64 [USERS, 20]."""
    scores = scores.copy()
    scores[clicks.users, clicks.items] = -np.inf
    order: NDArray[np.int64] = np.argpartition(-scores, _BEST, axis=1)[:, :_BEST]
    return order


def recall(scores: FloatArray, clicks: Clicks) -> float:
    """Share of held-out clicks among the best items."""
    return float((best(scores, clicks) == clicks.held_out[:, None]).any(axis=1).mean())


def with_new_user(model: LightGCN, clicks: Clicks, chosen: IdArray, *, both_ways: bool) -> FloatArray:
    """PyG's embedding of a further user, whose own row is zeros, on the graph with the user's clicks."""
    larger = LightGCN(USERS + ITEMS + 1, _DIM, num_layers=2).eval()
    last = USERS + ITEMS
    with torch.no_grad():
        larger.embedding.weight[:last], larger.embedding.weight[last] = model.embedding.weight, 0.0
        clicked = torch.from_numpy(np.stack([chosen + USERS, np.full(len(chosen), last)]))
        added = [clicked, clicked.flip(0)] if both_ways else [clicked]
        rows = larger.get_embedding(torch.cat([clicks.edge_index, *added], dim=1))
    found: FloatArray = rows[last].numpy()
    return found


def serve_lightgcn(model: LightGCN, clicks: Clicks, folder: Path, console: Console) -> dict[str, Any]:
    """Serve on a live graph; figures of known users, of a described one, and after events."""
    data = Data(edge_index=clicks.edge_index, num_nodes=USERS + ITEMS)
    graph = Graph.from_pyg(data).save(folder / "graph")
    report = hopline.package(
        Embeddings(model),
        graph,
        folder / "models",
        name="lightgcn",
        fanouts=[-1, -1],
        task="embedding",
        embeddings={"model.embedding": "node"},
        later_nodes="zero",
    )
    console.print(f"packaged lightgcn in {report.seconds:.1f} s")
    with torch.no_grad():
        expected = model.get_embedding(clicks.edge_index).numpy()
    topic = int(np.bincount(clicks.topics).argmax())
    chosen = np.flatnonzero(clicks.topics == topic)[:3]
    live = ("live.enabled=true", f"live.folder={folder / 'live'}")
    process = serving(folder / "graph", folder / "models", settings=live)
    with process as served, hopline.Client(served.url) as client:
        nodes = list(range(USERS + ITEMS))
        rows = client.score("lightgcn", nodes, outputs=["embedding"]).outputs["embedding"]
        described = InlineNode([], {"": (chosen + USERS).tolist()})
        asked = client.score_inline("lightgcn", [described], outputs=["embedding"])
        new_user = asked.outputs["embedding"][0]
        before = client.score("lightgcn", [int(chosen[0] + USERS)], outputs=["embedding"])
        name = USERS + ITEMS
        events: list[dict[str, Any]] = [{"id": "new", "op": "add_node", "node": name, "features": []}]
        for number, item in enumerate((chosen + USERS).tolist()):
            events.append({"id": f"a{number}", "op": "add_edge", "src": item, "dst": name})
            events.append({"id": f"b{number}", "op": "add_edge", "src": name, "dst": item})
        outcome = client.send_events(events)
        later = client.score("lightgcn", [name], outputs=["embedding"]).outputs["embedding"][0]
        after = client.score("lightgcn", [int(chosen[0] + USERS)], outputs=["embedding"])
    items = rows[USERS:]
    recommended = np.argsort(-(items @ later), kind="stable")[:_BEST]
    popular = np.bincount(clicks.items, minlength=ITEMS).astype(np.float32)
    known = with_new_user(model, clicks, chosen, both_ways=False)
    return {
        "max_abs_diff": float(np.abs(rows - expected).max()),
        "recall_at_20": round(recall(rows[:USERS] @ items.T, clicks), 3),
        "recall_at_20_popular": round(recall(np.tile(popular, (USERS, 1)), clicks), 3),
        "new_user_diff": float(np.abs(new_user - known).max()),
        "new_user_recall_at_20": float((clicks.topics[recommended] == topic).mean()),
        "live_diff": float(np.abs(later - with_new_user(model, clicks, chosen, both_ways=True)).max()),
        "events_refused": len(outcome.refused),
        "item_changed": not np.array_equal(before.outputs["embedding"], after.outputs["embedding"]),
    }


def serve_towers(model: Towers, clicks: Clicks, folder: Path, console: Console) -> float:
    """Serve pairs; the largest difference from PyG."""
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = USERS, ITEMS
    pairs = torch.from_numpy(np.stack([clicks.users, clicks.items]))
    data["user", "clicks", "item"].edge_index = pairs
    graph = Graph.from_pyg(data).save(folder / "bipartite")
    report = hopline.package(
        model,
        graph,
        folder / "towers",
        name="towers",
        fanouts=[],
        task="binary",
        head="dot",
        target=("user", "item"),
        embeddings={"user_emb": "user", "item_emb": "item"},
    )
    console.print(f"packaged towers in {report.seconds:.1f} s")
    users = clicks.users[::_CLICKS].repeat(2)
    items = np.stack([clicks.held_out, clicks.items[::_CLICKS]], axis=1).reshape(-1)
    with torch.no_grad():
        rows = model()
        expected = (rows["user"][users] * rows["item"][items]).sum(1).numpy()
    with serving(folder / "bipartite", folder / "towers") as served, hopline.Client(served.url) as client:
        answer = client.score_pairs("towers", np.stack([users, items], 1), outputs=["logits"])
    return float(np.abs(answer.outputs["logits"].reshape(-1) - expected).max())


def run(epochs: int, seed: int, console: Console) -> dict[str, Any]:
    """The whole example; returns the figures."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    clicks = draw(seed)
    console.print(f"{USERS:,} users, {ITEMS:,} items, {len(clicks.users):,} clicks")
    with tempfile.TemporaryDirectory(prefix="hopline-recommender-") as name:
        folder = Path(name)
        figures = serve_lightgcn(train_lightgcn(clicks, epochs, console), clicks, folder, console)
        towers = serve_towers(train_towers(clicks, epochs, console), clicks, folder, console)
    figures["max_abs_diff"] = max(figures["max_abs_diff"], towers)
    return figures | {"epochs": epochs}


def failures(figures: dict[str, Any]) -> list[str]:
    """Faults that --check finds in the figures, in words; empty for none."""
    found = [
        f"{name} is {figures[name]:.2e}; {LARGEST_DIFFERENCE:.0e} is allowed"
        for name in ("max_abs_diff", "new_user_diff", "live_diff")
        if not figures[name] <= LARGEST_DIFFERENCE
    ]
    if figures["events_refused"] or not figures["item_changed"]:
        found.append("the clicks that arrived live did not change the next answer")
    if not figures["recall_at_20"] > figures["recall_at_20_popular"]:
        found.append("recommendations are no better than popular items")
    return found


def main() -> int:
    """Run the example; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 unless the served answers are right"
    )
    parser.add_argument("--epochs", type=int, help="default: 30, with --check 12")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # People read stderr, programs the one line on stdout.
    console = Console(stderr=True, highlight=False)
    epochs = arguments.epochs or (12 if arguments.check else 30)
    figures = run(epochs, arguments.seed, console)
    wrong = failures(figures) if arguments.check else []
    for text in wrong:
        console.print(f"[bold red]check failed:[/bold red] {text}")
    print(json.dumps(figures))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
