"""What is recorded is what the stages read."""

import numpy as np

from hopline.artifact import read_spec
from hopline.engine.model import Model
from hopline_compress.quantize.record import record
from packages.compress.tests.quantize.conftest import DIM, N


def recorded(case, nodes):
    told = []
    spec = read_spec(case.folder)
    calls = record(
        Model(case.folder, spec, case.graph),
        {"node": np.asarray(nodes)},
        lambda done, total: told.append((done, total)),
    )
    assert told[-1] == (len(nodes), len(nodes))
    return calls


def test_rows_are_own_features_beside_the_sum_over_the_fanout_s_neighbours(cases):
    case = cases["sage"]  # reads all neighbours at its upper, and six at its lower layer
    rows = np.concatenate([call["x"] for call in recorded(case, np.arange(100))["1.node"]])
    features = np.array(case.graph.nodes["node"].features)
    own = {row.tobytes(): i for i, row in enumerate(features)}
    adjacency = case.graph.edge()
    for row in rows:
        node = own[row[:DIM].tobytes()]
        start, stop = adjacency.indptr[node], adjacency.indptr[node + 1]
        if stop - start <= 6:
            total = features[adjacency.indices[start:stop]].sum(0)
            np.testing.assert_allclose(row[DIM:], total, atol=1e-4)


def test_the_row_that_reaches_furthest_is_kept(cases):
    calls = recorded(cases["sage"], np.arange(N))
    rows = np.concatenate([call["x"] for call in calls["1.node"]])
    assert rows.shape[0] <= 4096
    fewer = np.concatenate([call["x"] for call in recorded(cases["sage"], np.arange(64))["1.node"]])
    assert np.abs(rows).max() >= np.abs(fewer).max()


def test_queries_of_attention_are_kept_beside_its_rows(cases):
    calls = recorded(cases["gat"], np.arange(80))
    assert {"1.node", "2.node", "2.node.query"} <= calls.keys()
    assert sum(len(rows) for call in calls["2.node.query"] for rows in call.values()) >= 80


def test_rows_of_edges_are_kept_whole(blocks):
    for call in recorded(blocks, np.arange(80))["1.node"]:
        owners, nodes, sources = (call[f"{kind}_0"] for kind in ("owners", "nodes", "sources"))
        assert 0 <= owners.min() <= owners.max() < nodes.shape[0]
        assert owners.shape[0] == sources.shape[0]
