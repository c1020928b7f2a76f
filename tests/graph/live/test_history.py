"""A live graph keeps the rows that nodes had: after any events, they are those of a list of all events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.errors import GraphError
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.graph.edge_times import rough_range
from hopline.graph.live.changes import Changes, EdgeChanges, NodeChanges
from hopline.graph.live.codec import decode_changes, encode_changes
from hopline.graph.live.history import LiveHistory
from hopline.graph.live.home import LiveHome
from hopline.graph.live.version import read_offset
from tests.graph.live.keepers import Kept
from tests.graph.live.test_writer import live
from tests.thorough import thorough

PAYS, USES = "user__pays__user", "user__uses__item"
LAST = 60


class Oracle:
    """Plain dictionaries: applies events one by one, as the documentation says."""

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        since: int | None = None,
        both: bool = False,
        columns: bool = False,
    ) -> None:
        self.rng, self.since, self.both, self.columns, self.count = rng, since, both, columns, 0
        #: Name -> time -> features, or the first as a column beside a text; items have no history.
        self.users: dict[str, dict[int, tuple[np.ndarray, str | None]]] = {}
        self.items = {f"i{at}": self.row(1) for at in range(5)}
        self.pays: list[tuple[str, str, int, float]] = []
        self.uses: list[tuple[str, str, int]] = []
        for at in range(12):
            self.users[f"u{at}"] = {t: self.user() for t in self.some_times()}
        for _ in range(60):
            src, dst = self.some(self.users), self.some(self.users)
            self.pays += [(src, dst, self.late_enough(src, dst), self.value())]
            self.uses += [(src, self.some(self.items), self.late_enough(src))]

    def row(self, dim: int) -> np.ndarray:
        return self.rng.standard_normal(dim).astype(np.float32)

    def value(self) -> float:
        return float(np.float32(self.rng.random()))

    def user(self) -> tuple[np.ndarray, str | None]:
        return self.row(3), [None, "red", "blue", f"own{self.rng.integers(30)}"][self.rng.integers(4)]

    def some(self, table: Any) -> str:
        names = list(table)
        return names[self.rng.integers(len(names))]

    def time(self) -> int:
        return int(self.rng.integers(LAST))

    def some_times(self) -> list[int]:
        return sorted({self.time() for _ in range(1 + self.rng.integers(4))})

    def first(self, name: str) -> int:
        first = min(self.users[name])
        return first if self.since is None or first > self.since else -100

    def late_enough(self, *names: str) -> int:
        """Both ends exist then, where each direction is a type."""
        return max(self.time(), *(self.first(name) for name in names[: 1 + self.both]))

    def graph(self) -> Graph:
        ids = [name for name, rows in self.users.items() for _ in rows]
        rows = [each for own in self.users.values() for each in own.values()]
        values: dict[str, Any] = {"features": np.stack([row for row, _ in rows])}
        if self.columns:
            columns = {
                "color": [text for _, text in rows],
                "limit": [float(row[0]) for row, _ in rows],
            }
            values = {"columns": columns, "column_types": {"color": "text"}}
        table = NodeTable(
            **values,
            ids=ids,
            history=[time for own in self.users.values() for time in own],
            history_since=self.since,
        )
        items = NodeTable(np.stack(list(self.items.values())), ids=list(self.items))
        pays = EdgeTable(
            ([e[0] for e in self.pays], [e[1] for e in self.pays]),
            time=[e[2] for e in self.pays],
            weight=np.array([e[3] for e in self.pays], np.float32),
        )
        uses = EdgeTable(
            ([e[0] for e in self.uses], [e[1] for e in self.uses]), time=[e[2] for e in self.uses]
        )
        return Graph.from_tables(
            {"user": table, "item": items},
            {("user", "pays", "user"): pays, ("user", "uses", "item"): uses},
            both_directions=self.both,
        )

    def values(self, rows: list[tuple[np.ndarray, str | None]], order: np.ndarray) -> tuple[Any, ...]:
        """Features, places of events, cells and texts of events."""
        if not self.columns:
            return np.stack([row for row, _ in rows]), order, None, None
        cells = np.array([[0.0, float(row[0])] for row, _ in rows])
        texts = np.array([[text] for _, text in rows], object)
        return np.empty((len(rows), 0), np.float32), order, cells, texts

    def batch(self, size: int) -> tuple[Changes, set[int]]:
        """Draw events, apply those that are right, and return them as columns; and which are wrong."""
        rng, wrong = self.rng, set[int]()
        users: list[tuple[Any, ...]] = []
        items: list[tuple[Any, ...]] = []
        pays: list[tuple[Any, ...]] = []
        uses: list[tuple[Any, ...]] = []
        for order in range(size):
            kind, name, other = rng.integers(10), self.some(self.users), self.some(self.users)
            if kind < 3:  # a new row, a late one, or one in place of another
                own = self.users[name]
                time = self.time() if kind else list(own)[rng.integers(len(own))]
                own[time] = row = self.user()
                users.append((name, False, row, order, False, time))
            elif kind == 3:
                name, row, time = f"n{self.count}", self.user(), self.time()
                self.count += 1
                self.users[name] = {time: row}
                users.append((name, True, row, order, False, time))
            elif kind == 4 and len(self.users) > 4:
                del self.users[name]
                self.pays = [each for each in self.pays if name not in each[:2]]
                self.uses = [each for each in self.uses if each[0] != name]
                users.append((name, False, self.user(), order, True, self.time()))
            elif kind == 5:
                item, row = self.some(self.items), self.row(1)
                self.items[item] = row
                items.append((item, False, row, order))
            elif kind < 8:
                time = self.time()
                if time < max(self.first(each) for each in (name, other)[: 1 + self.both]):
                    wrong.add(order)
                else:
                    self.pays.append((name, other, time, value := self.value()))
                pays.append((name, other, order, time, value if order not in wrong else 1.0))
            else:
                item, time = self.some(self.items), self.time()
                if time < self.first(name):
                    wrong.add(order)
                else:
                    self.uses.append((name, item, time))
                uses.append((name, item, order, time))
        nodes, edges = {}, {}
        if users:
            nodes["user"] = NodeChanges(
                [e[0] for e in users],
                np.array([e[1] for e in users]),
                *self.values([e[2] for e in users], np.array([e[3] for e in users])),
                np.array([e[4] for e in users]),
                np.array([e[5] for e in users]),
            )
        if items:
            nodes["item"] = NodeChanges(
                [e[0] for e in items],
                np.array([e[1] for e in items]),
                np.stack([e[2] for e in items]),
                np.array([e[3] for e in items]),
            )
        for key, rows in ((PAYS, pays), (USES, uses)):
            if rows:
                edges[key] = EdgeChanges(
                    [e[0] for e in rows],
                    [e[1] for e in rows],
                    np.zeros(len(rows), bool),
                    np.array([e[2] for e in rows]),
                    time=np.array([e[3] for e in rows]),
                    weight=np.array([e[4] for e in rows], np.float32) if key == PAYS else None,
                )
        return Changes(edges, nodes, size), wrong


def told(graph: Graph) -> dict[str, Any]:
    """What a graph holds, by names: rows of users by time, rows of now, edges of each target in order."""
    users, past = graph.nodes["user"], graph.nodes["user"].history
    names = users.ids.external(np.arange(users.num_nodes))
    gone = set(users.ids.removed.tolist())
    of_past, of_now = (
        np.asarray(part.features[:]).tolist() if part.columns is None else part.columns.table.to_pylist()
        for part in (past, users)
    )
    found: dict[Any, Any] = {"now": {}, "since": past.since}
    for at, name in enumerate(names):
        own = range(*past.offsets[at : at + 2].tolist())
        times = past.times[own.start : own.stop].tolist()
        assert times == sorted(set(times))
        if at in gone:
            assert len(own) == 1
            empty = of_past[own.start]
            assert not any(empty.values() if isinstance(empty, dict) else empty)
            continue
        found["now"][name] = of_now[at]
        for place, time in zip(own, times, strict=True):
            found[name, time] = of_past[place]
    items = graph.nodes["item"]
    for at, name in enumerate(items.ids.external(np.arange(items.num_nodes))):
        found[name] = items.features[at].tobytes()
    for key, edges in graph.edges.items():
        sources = graph.nodes[edges.src].ids.external(edges.indices.astype(np.int64))
        owners = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
        targets = graph.nodes[edges.dst].ids.external(owners)
        weight = np.zeros(len(owners)) if edges.weight is None else edges.weight
        assert all((np.diff(own) >= 0).all() for own in np.split(edges.time, edges.indptr[1:-1]))
        found[key] = sorted(zip(targets, edges.time.tolist(), sources, weight.tolist(), strict=True))
    return found


def then(graph: Any, names: list[str], as_of: int) -> list[float | None]:
    """The first value of users that a view has for a time; None without a row."""
    part = graph.nodes["user"]
    places = part.history.places(part.ids.lookup(names), as_of)
    rows = part.history.features
    if part.column_schemas:
        rows = part.cells(np.arange(len(part.since)))[0][:, 1:]
    return [None if at < 0 else float(rows[at, 0]) for at in places.tolist()]


def of_lists(oracle: Oracle, names: list[str], as_of: int) -> list[float | None]:
    found = []
    for name in names:
        times = [time for time in oracle.users[name] if time <= as_of]
        found.append(float(oracle.users[name][max(times)][0][0]) if times else None)
    return found


@settings(max_examples=thorough(25, 100), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=10),
    since=st.none() | st.integers(0, LAST),
    both=st.booleans(),
    columns=st.booleans(),
)
def test_any_events_leave_the_rows_of_a_list(
    seed: int, sizes: list[int], since: int | None, both: bool, columns: bool
) -> None:
    oracle = Oracle(np.random.default_rng(seed), since=since, both=both, columns=columns)
    writer, view = live(oracle.graph())
    for size in sizes:
        changes, wrong = oracle.batch(size)
        applied = writer.apply(decode_changes(encode_changes(changes)))
        assert {each.order: each.code for each in applied.rejected} == dict.fromkeys(wrong, "unknown_node")
        with view:
            names = list(oracle.users)
            for as_of in (-1, *map(int, oracle.rng.integers(0, LAST, 4)), 10**9):
                assert then(view, names, as_of) == of_lists(oracle, names, as_of)
            assert view.latest_time == view.snapshot().clock
            low, high = rough_range(view, ())
            times = {time for own in oracle.users.values() for time in own}
            assert low <= min(times)
            assert high >= max(times)
    assert told(view.snapshot()) == told(oracle.graph())


@settings(max_examples=thorough(8, 40), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 30), min_size=4, max_size=10),
    drops=st.booleans(),
)
def test_a_reader_keeps_its_rows_and_dropped_batches_leave_none(
    seed: int, sizes: list[int], drops: bool
) -> None:
    """One or the other: what is dropped waits for readers of earlier versions."""
    oracle = Oracle(np.random.default_rng(seed))
    writer, view = live(oracle.graph())
    late = view.another()
    kept = None
    for number, size in enumerate(sizes):
        state = (
            {key: dict(rows) for key, rows in oracle.users.items()},
            list(oracle.pays),
            list(oracle.uses),
        )
        items = dict(oracle.items)
        changes, _ = oracle.batch(size)
        prepared = writer.prepare(changes)
        if drops and number % 3 == 2:
            writer.drop()
            (oracle.users, oracle.pays, oracle.uses), oracle.items = state, items
        else:
            writer.publish([prepared])
        assert told(view.snapshot()) == told(oracle.graph())
        if number == 0 and not drops:
            late.__enter__()
            kept = told(late.snapshot())
        assert drops or told(late.snapshot()) == kept
    late.close()


def test_slots_of_replaced_rows_are_used_again_and_those_of_the_past_are_not() -> None:
    oracle = Oracle(np.random.default_rng(5))
    writer, view = live(oracle.graph(), spare=10)
    name = next(iter(oracle.users))
    room = len(view.memory.nodes["user"].since)
    size = 5_000
    for _ in range(3 * room // size):
        rows = np.full((size, 3), oracle.row(1)[0])
        times = np.full(size, 7) + np.arange(size) % 2
        nodes = NodeChanges([name] * size, np.zeros(size, bool), rows, np.arange(size), time=times)
        assert not writer.apply(Changes({}, {"user": nodes}, size)).rejected
        oracle.users[name] |= {7: (rows[-2], None), 8: (rows[-1], None)}
    assert told(view.snapshot()) == told(oracle.graph())
    assert 0 < writer.filled < 1


def test_rows_beyond_the_room_are_refused_by_name() -> None:
    oracle = Oracle(np.random.default_rng(6))
    writer, view = live(oracle.graph(), spare=10)
    before = told(view.snapshot())
    count = len(view.memory.nodes["user"].since) + 1
    rows, every = np.zeros((count, 3), np.float32), np.arange(count)
    nodes = NodeChanges(["u1"] * count, np.zeros(count, bool), rows, every, time=every)
    applied = writer.apply(Changes({}, {"user": nodes}, count))
    assert {each.code for each in applied.rejected} == {"full"}
    assert told(view.snapshot()) == before


def test_a_row_without_a_time_is_refused() -> None:
    writer, _ = live(Oracle(np.random.default_rng(7)).graph())
    nodes = NodeChanges(["u1"], np.array([False]), np.zeros((1, 3), np.float32), np.arange(1))
    (rejected,) = writer.apply(Changes({}, {"user": nodes}, 1)).rejected
    assert (rejected.code, rejected.reason) == ("no_time", "rows of 'user' have times; set `time`")


def test_the_folder_keeps_history_over_snapshots_restarts_and_versions(tmp_path: Path) -> None:
    oracle = Oracle(np.random.default_rng(8), since=3, columns=True)
    graph = oracle.graph().save(tmp_path / "graph")
    kept = Kept(tmp_path / "live", graph)
    versions = [told(graph)]
    for number in range(9):
        changes, wrong = oracle.batch(20)
        (outcome,) = kept.keeper.apply([changes])
        assert {each.order for each in outcome.rejected} == wrong
        versions.append(told(oracle.graph()))
        if number in (3, 5):
            kept.snapshot()
        if number in (4, 7):
            kept.close()
            kept = Kept(tmp_path / "live", Graph.open(tmp_path / "graph"))
        assert told(kept.view.snapshot()) == versions[-1]
    kept.close()
    for number, wanted in enumerate(versions):
        with LiveHistory(tmp_path / "live", read_offset(str(number)) if number else None) as history:
            if number:
                history.reach(read_offset(str(number)))
                assert told(history.graph()) == wanted


def test_a_snapshot_of_late_nodes_is_a_graph_like_others(tmp_path: Path) -> None:
    """A node that came late has an early row: rows are numbered as they came, not by times."""
    oracle = Oracle(np.random.default_rng(9))
    writer, view = live(oracle.graph())
    row = oracle.user()
    oracle.users["late"] = {-50: row}
    nodes = NodeChanges(["late"], np.array([True]), row[0][None], np.arange(1), time=np.array([-50]))
    assert not writer.apply(Changes({}, {"user": nodes}, 1)).rejected
    view.snapshot().save(tmp_path / "saved")
    assert told(Graph.open(tmp_path / "saved", verify=True)) == told(oracle.graph())


def test_times_of_nodes_are_refused_with_what_to_build(tmp_path: Path) -> None:
    table = NodeTable(np.zeros((2, 1), np.float32), time=[1, 2])
    graph = Graph.from_tables({"node": table}, {}).save(tmp_path / "graph")
    with pytest.raises(GraphError, match="has times, which no event sets: build the graph with a history"):
        LiveHome.open(tmp_path / "live", graph)
