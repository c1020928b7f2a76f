"""Columns with a history: preprocessing in the artifact reads the cells of then."""

import json

import numpy as np
import pandas as pd

from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.events.decode import Decoder
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.types import ScoreRequest
from packages.tabular.tests import fraud_graph as fraud
from tests.graph.live.test_writer import live
from tests.thorough import thorough

LAST = 100


def histories(seed=1):
    """Tables of accounts and merchants with times, in any order."""
    rng, found = np.random.default_rng(seed), []
    for name, make, count in (("a", fraud.accounts, 30), ("m", None, fraud.MERCHANTS)):
        frame = (
            fraud.accounts(count * 4, seed) if make else pd.concat([fraud.merchants(at) for at in range(4)])
        )
        first = np.repeat(rng.integers(0, 40, count), 4)
        frame = frame.reset_index(drop=True).assign(
            id=[f"{name}{at // 4}" for at in range(len(frame))],
            time=first + np.tile([0, 11, 23, 47], count),
        )
        found.append(frame.sample(frac=1.0, random_state=seed, ignore_index=True))
    return found


def known(frame, as_of):
    then = frame[frame.time <= as_of].sort_values("time", kind="stable")
    order = then.drop_duplicates("id").id
    return then.drop_duplicates("id", keep="last").set_index("id").loc[order].reset_index()


def graph_of(frames, edges, as_of=None):
    tables, there = {}, {}
    for name, frame in zip(("account", "merchant"), frames, strict=True):
        rows = frame if as_of is None else known(frame, as_of)
        more = {"history": frame.time.to_numpy()} if as_of is None else {}
        types = {"mcc": "text"} if name == "account" else {}
        columns = rows.drop(columns=["id", "time"])
        tables[name] = NodeTable(columns=columns, column_types=types, ids=list(rows.id), **more)
        there[name] = set(rows.id)
    found = {}
    for key, frame in edges.items():
        if as_of is not None:
            frame = frame[
                (frame.time <= as_of) & frame.src.isin(there[key[0]]) & frame.dst.isin(there[key[2]])
            ]
        found[key] = EdgeTable((list(frame.src), list(frame.dst)), time=frame.time.to_numpy())
    return Graph.from_tables(tables, found)


def edges_of(frames, seed=2):
    rng = np.random.default_rng(seed)
    first = {
        name: f.groupby("id").time.min() for name, f in zip(("account", "merchant"), frames, strict=True)
    }
    found = {}
    for key in (fraud.PAYS, fraud.PAID_BY):
        src, dst = rng.choice(first[key[0]].index, 300), rng.choice(first[key[2]].index, 300)
        time = first[key[0]][src].to_numpy() + rng.integers(0, 60, 300)
        found[key] = pd.DataFrame({"src": src, "dst": dst, "time": time})
    return found


def answerer(world, graph):
    return Answerer(load_model(world.report.path, world.report.spec, graph), ("logits", "embedding"), 99)


def ask(found, ids, as_of=None):
    (outcome,) = found.answer([ScoreRequest("risk", nodes=ids, as_of=as_of)])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome.outputs["logits"]


def test_moments_of_raw_columns_equal_rebuilt_graphs(world, tmp_path):
    """Of a saved graph, whose encoded rows all processes share, and of one in memory."""
    frames = histories()
    edges, rng = edges_of(frames), np.random.default_rng(3)
    graph = graph_of(frames, edges)
    loaded = [answerer(world, each) for each in (graph, graph.save(tmp_path / "graph"))]
    for turn in range(thorough(20, 100)):
        as_of = int(rng.integers(40, LAST))
        ids = list(known(frames[0], as_of).id)
        then = ask(loaded[turn % 2], ids, as_of)
        np.testing.assert_array_equal(then, ask(answerer(world, graph_of(frames, edges, as_of)), ids))
    newest = ask(loaded[0], ids)
    np.testing.assert_array_equal(newest, ask(answerer(world, graph_of(frames, edges, 10**6)), ids))
    assert (newest != ask(loaded[0], ids, 45)).any()


def value(cell):
    if isinstance(cell, pd.Timestamp):
        return cell.isoformat()
    return None if cell is None or cell != cell else cell


def test_a_live_graph_reads_the_columns_of_then(world):
    """Rows come as events: new nodes in the order of their first rows, other rows late and in any order."""
    frames = histories()
    edges, rng, begin = edges_of(frames), np.random.default_rng(5), 25
    names = "account", "merchant"
    first = [frame.groupby("id").time.min() for frame in frames]
    known_at = [frame[(frame.time <= begin) & (own[frame.id] <= begin).to_numpy()]
                for frame, own in zip(frames, first, strict=True)]  # fmt: skip
    there = dict(zip(names, [set(frame.id) for frame in known_at], strict=True))
    based = {key: f[f.src.isin(there[key[0]]) & f.dst.isin(there[key[2]])] for key, f in edges.items()}
    graph = graph_of(known_at, based)
    writer, view = live(graph)
    loaded = Answerer(load_model(world.report.path, world.report.spec, view), ("logits",), 99)
    added, rows = [], []
    for name, frame, own, old in zip(names, frames, first, known_at, strict=True):
        left = frame.drop(old.index).sort_values("time", kind="stable")
        is_first = left.time == own[left.id].to_numpy()
        is_new = is_first & ~left.id.isin(there[name])
        for each, new in zip(left.to_dict("records"), is_new, strict=True):
            columns = {key: value(cell) for key, cell in each.items() if key not in ("id", "time")}
            event = {"op": "add_node" if new else "set_features", "node_type": name, "node": each["id"],
                     "time": each["time"], "columns": columns}  # fmt: skip
            (added if new else rows).append(event)
    rng.shuffle(rows)
    for key, frame in edges.items():
        rows += [
            {"op": "add_edge", "edge_type": "__".join(key), "src": e.src, "dst": e.dst, "time": e.time}
            for e in frame.drop(based[key].index).itertuples()
        ]
    for part in (added, rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        decoded = Decoder(graph.schema).decode([json.dumps(part).encode()])
        assert decoded.refused == []
        assert writer.apply(decoded.changes).rejected == []
    in_order = {key: pd.concat([f, edges[key].drop(f.index)]) for key, f in based.items()}
    for _ in range(thorough(20, 100)):
        as_of = int(rng.integers(0, LAST))
        if ids := list(known(frames[0], as_of).id):
            rebuilt = answerer(world, graph_of(frames, in_order, as_of))
            np.testing.assert_array_equal(ask(loaded, ids, as_of), ask(rebuilt, ids))
    newest = answerer(world, graph_of(frames, in_order, 10**6))
    np.testing.assert_array_equal(ask(loaded, ids), ask(newest, ids))
