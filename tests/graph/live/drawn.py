"""Batches of changes at random, and what a list of all events says the graph must be."""

from __future__ import annotations

from typing import Any

import numpy as np

from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.graph.live.changes import Changes, EdgeChanges, NodeChanges

USER, ITEM = "user", "item"
BUYS, KNOWS = "user__buys__item", "user__knows__user"


class Oracle:
    """Plain lists: applies events one by one, as the documentation says, and builds a graph from them."""

    def __init__(
        self, rng: np.random.Generator, num_users: int = 40, num_items: int = 25, both: bool = False
    ) -> None:
        self.rng = rng
        self.both = both
        self.users: dict[str, np.ndarray] = {f"u{i}": _row(rng, 3) for i in range(num_users)}
        self.items: dict[int, np.ndarray] = {1000 + i: _row(rng, 2) for i in range(num_items)}
        users, items = list(self.users), list(self.items)
        #: Removed users, whose names come again.
        self.gone: list[str] = []
        #: (src, dst, time, weight) and (src, dst, attr)
        self.buys: list[tuple[Any, ...]] = [
            (users[rng.integers(num_users)], items[rng.integers(num_items)], int(rng.integers(50)), _f(rng))
            for _ in range(120)
        ]
        self.knows: list[tuple[Any, ...]] = [
            (users[rng.integers(num_users)], users[rng.integers(num_users)], _row(rng, 2))
            for _ in range(150)
        ]

    def graph(self) -> Graph:
        users, items = list(self.users), list(self.items)
        return Graph.from_tables(
            {
                USER: NodeTable(np.stack(list(self.users.values())), ids=users),
                ITEM: NodeTable(np.stack(list(self.items.values())), ids=items),
            },
            {
                (USER, "buys", ITEM): EdgeTable(
                    ([e[0] for e in self.buys], [e[1] for e in self.buys]),
                    time=np.array([e[2] for e in self.buys], np.int64),
                    weight=np.array([e[3] for e in self.buys], np.float32),
                ),
                (USER, "knows", USER): EdgeTable(
                    ([e[0] for e in self.knows], [e[1] for e in self.knows]),
                    attr=np.array([e[2] for e in self.knows], np.float32).reshape(-1, 2),
                ),
            },
            both_directions=self.both,
        )

    def batch(self, size: int) -> Changes:
        """Draw `size` events, apply them to the lists, and return them as columns."""
        rng = self.rng
        buys: list[tuple[Any, ...]] = []
        knows: list[tuple[Any, ...]] = []
        users: list[tuple[Any, ...]] = []
        items: list[tuple[Any, ...]] = []
        for order in range(size):
            kind = rng.integers(12)
            some_users, some_items = list(self.users), list(self.items)
            user = some_users[rng.integers(len(some_users))]
            other = some_users[rng.integers(len(some_users))]
            item = some_items[rng.integers(len(some_items))]
            if kind < 3:
                time, weight = int(rng.integers(60)), _f(rng)
                self.buys.append((user, item, time, weight))
                buys.append((user, item, False, order, time, True, weight))
            elif kind < 5:
                attr = _row(rng, 2)
                self.knows.append((user, other, attr))
                knows.append((user, other, False, order, attr))
            elif kind == 5 and self.buys:
                src, dst, time, _ = self.buys[rng.integers(len(self.buys))]
                named = bool(rng.integers(2))
                self.buys = [
                    e
                    for e in self.buys
                    if not (e[0] == src and e[1] == dst and (not named or e[2] == time))
                ]
                buys.append((src, dst, True, order, time, named, 0.0))
            elif kind == 6 and self.knows:
                src, dst, _ = self.knows[rng.integers(len(self.knows))]
                self.knows = [e for e in self.knows if not (e[0] == src and e[1] == dst)]
                knows.append((src, dst, True, order, np.zeros(2, np.float32)))
            elif kind == 7:
                name, row = f"new{rng.integers(2**60)}", _row(rng, 3)
                self.users[name] = row
                users.append((name, True, row, order, False))
            elif kind == 8:
                row = _row(rng, 3)
                self.users[user] = row
                users.append((user, False, row, order, False))
            elif kind == 10 and len(self.users) > 2:
                del self.users[user]
                self.buys = [each for each in self.buys if each[0] != user]
                self.knows = [each for each in self.knows if user not in each[:2]]
                self.gone.append(user)
                users.append((user, False, _row(rng, 3), order, True))
            elif kind == 11 and self.gone:
                name, row = self.gone.pop(rng.integers(len(self.gone))), _row(rng, 3)
                self.users[name] = row
                users.append((name, True, row, order, False))
            else:
                key, row = 5000 + len(self.items), _row(rng, 2)
                if rng.integers(2):
                    key = item
                add = key not in self.items
                self.items[key] = row
                items.append((key, add, row, order))
        edges: dict[str, EdgeChanges] = {}
        if buys:
            edges[BUYS] = EdgeChanges(
                src=[e[0] for e in buys],
                dst=np.array([e[1] for e in buys], np.int64),
                remove=np.array([e[2] for e in buys]),
                order=np.array([e[3] for e in buys], np.int64),
                time=np.array([e[4] for e in buys], np.int64),
                has_time=np.array([e[5] for e in buys]),
                weight=np.array([e[6] for e in buys], np.float32),
            )
        if knows:
            edges[KNOWS] = EdgeChanges(
                src=[e[0] for e in knows],
                dst=[e[1] for e in knows],
                remove=np.array([e[2] for e in knows]),
                order=np.array([e[3] for e in knows], np.int64),
                attr=np.array([e[4] for e in knows], np.float32),
            )
        nodes: dict[str, NodeChanges] = {}
        if users:
            nodes[USER] = NodeChanges(
                ids=[e[0] for e in users],
                add=np.array([e[1] for e in users]),
                features=np.array([e[2] for e in users], np.float32),
                order=np.array([e[3] for e in users], np.int64),
                remove=np.array([e[4] for e in users]),
            )
        if items:
            nodes[ITEM] = NodeChanges(
                ids=np.array([e[0] for e in items], np.int64),
                add=np.array([e[1] for e in items]),
                features=np.array([e[2] for e in items], np.float32),
                order=np.array([e[3] for e in items], np.int64),
            )
        return Changes(edges=edges, nodes=nodes, num_events=size)


def _row(rng: np.random.Generator, dim: int) -> np.ndarray:
    return rng.standard_normal(dim).astype(np.float32)


def _f(rng: np.random.Generator) -> float:
    return float(np.float32(rng.random()))
