"""Drift of a model with preprocessing is of its columns: categories by name, not what encodes them."""

import numpy as np
import pandas as pd
import pytest

from hopline.observe.psi import compare
from hopline.types import InlineNode, ScoreRequest, ScoreResult
from hopline_drift.observed import Quantity
from hopline_drift.reference import Reference
from hopline_drift.training import Choice, Packaged, from_graph
from packages.tabular.tests import fraud_graph as fraud
from packages.tabular.tests import payment_graph as shop
from packages.tabular.tests import test_live_edge_columns as live_edges
from packages.tabular.tests.fraud_world import as_sent
from packages.tabular.tests.test_edge_columns import ROW, Shop
from packages.tabular.tests.test_live_columns import Live, added

COLUMNS = ["amount", "country", "mcc", "age", "active", "opened"]


@pytest.fixture(scope="module")
def model(world):
    return world.answerer().model


def asked(*requests):
    """Requests with an answer each."""
    outputs = {"probabilities": np.full(64, 0.5, np.float32)}
    return [(request, ScoreResult("risk", "1", "g", outputs)) for request in requests]


def inputs_of(observed):
    return {each.name for each in observed.quantities() if each.kind == "input"}


def new_nodes(countries, count=500):
    frame = fraud.accounts(count, seed=3, countries=countries)
    return [
        ScoreRequest("risk", inline=[InlineNode(columns=as_sent(row))]) for row in frame.to_dict("records")
    ]


@pytest.mark.release
def test_known_and_new_nodes_are_read_by_the_columns_of_their_table(model):
    frame = fraud.accounts()
    known = ScoreRequest("risk", nodes=[f"a{row}" for row in range(20)])
    new = ScoreRequest(
        "risk", inline=[InlineNode(columns=as_sent(row)) for row in frame[:20].to_dict("records")]
    )
    found = [Choice().reader().read(asked(request), model) for request in (known, new)]
    for observed in found:
        assert inputs_of(observed) == set(COLUMNS)
        assert list(observed.values(Quantity("input", "country"))) == frame["country"][:20].tolist()
        np.testing.assert_array_equal(observed.values(Quantity("input", "amount")), frame["amount"][:20])
    for name in ("active", "opened", "age"):
        np.testing.assert_array_equal(*(each.values(Quantity("input", name)) for each in found))


def test_nodes_of_a_live_graph_are_read_by_the_columns_that_events_gave_them(world):
    live = Live(world)
    frame = fraud.accounts(20, seed=5, countries=["XX", "YY"])
    assert live.send(*(added(f"n{row}", frame.iloc[row]) for row in range(20))) == []
    around = Packaged(live.model.spec, live.model.graph.beside("drift"), live.model.encoders)
    request = ScoreRequest("risk", nodes=[f"n{row}" for row in range(20)])
    observed = Choice().reader().read(asked(request), around)
    assert inputs_of(observed) == set(COLUMNS)
    assert list(observed.values(Quantity("input", "country"))) == frame["country"].tolist()
    np.testing.assert_array_equal(observed.values(Quantity("input", "amount")), frame["amount"])


def test_a_category_that_becomes_frequent_is_named(model):
    reference = from_graph(Packaged(model.spec, model.graph, model.encoders), Choice(), 0.0)
    entries = {entry.name: entry for entry in reference.entries if entry.kind == "input"}
    assert set(entries) == set(COLUMNS)
    for countries, is_moved in ((fraud.COUNTRIES, False), (["BR", "BR", "BR", "US"], True)):
        observed = Choice().reader().read(asked(*new_nodes(countries)), model)
        for name, entry in entries.items():
            current = entry.sketch.empty_copy()
            current.update(observed.values(entry.quantity))
            compared = compare(entry.sketch, current)
            assert compared.above(0.25) == (is_moved and name == "country"), name
            if is_moved and name == "country":
                assert dict(zip(entry.sketch.bins.names(), current.shares(), strict=True))["BR"] > 0.6


def test_only_the_columns_that_are_wanted_are_read(model):
    few = Choice(columns=("country", "age")).reader().read(asked(*new_nodes(fraud.COUNTRIES, 5)), model)
    assert inputs_of(few) == {"country", "age"}
    two = Choice(max_columns=2).reader().read(asked(*new_nodes(fraud.COUNTRIES, 5)), model)
    assert len(inputs_of(two)) == 2


def test_a_reference_of_traffic_has_bins_of_categories(model):
    observed = Choice().reader().read(asked(*new_nodes(fraud.COUNTRIES)), model)
    entries = {entry.name: entry for entry in Reference.of(observed, "traffic", 0.0).entries}
    assert set(entries["country"].sketch.bins.names()) >= set(fraud.COUNTRIES)


def of_edges(model, request):
    """The observed columns of edges, sorted by amount."""
    observed = Choice().reader().read(asked(request), model)
    names = {each.name for each in observed.quantities() if each.kind == "edge"}
    found = pd.DataFrame({name: observed.values(Quantity("edge", name)) for name in sorted(names)})
    return found.sort_values("amount", ignore_index=True) if len(found) else found


@pytest.mark.sample(1)
@pytest.mark.parametrize("turns", [False, True], ids=["two types", "one type"])
def test_columns_of_edges_are_read_of_known_nodes_of_new_ones_and_of_events(turns, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shopped = Shop(tmp_path, turns)
    account, _ = fraud.pairs()
    few = np.flatnonzero(np.bincount(account, minlength=fraud.ACCOUNTS) <= 8)[:20]  # all edges are read
    paid = shop.fitted_form(shopped.frame[np.isin(account, few)]).sort_values("amount", ignore_index=True)
    known = ScoreRequest("risk", nodes=[f"a{row}" for row in few])
    model = shopped.answerer().model
    found = of_edges(model, known)
    if turns:  # the stored columns have the order of the other direction
        assert found.empty
    else:
        assert set(found) == set(shop.payments(1))
        np.testing.assert_array_equal(found["amount"], paid["amount"])
        assert sorted(map(str, found["currency"])) == sorted(
            map(str, paid["currency"].replace(np.nan, None))
        )
        rows = [as_sent(row) for row in shop.payments(30, 7).to_dict("records")]
        inline = [
            InlineNode([1.0] * 3, {"": [3, 5, 7]}, edge_attr={"": rows[at : at + 3]})
            for at in range(0, 30, 3)
        ]
        sent = of_edges(model, ScoreRequest("risk", inline=inline))
        amounts = shop.payments(30, 7).sort_values("amount", ignore_index=True)["amount"]
        np.testing.assert_array_equal(sent["amount"], amounts)
    live = live_edges.Live(shopped)
    events = live_edges.paid(f"a{few[0]}", 3, ROW | {"amount": -7.0})
    assert live.send(*live_edges.of(live, events)) == []
    view = live.answerer.model
    found = of_edges(Packaged(view.spec, view.graph.beside("drift"), view.encoders), known)
    np.testing.assert_array_equal(found["amount"], [-7.0, *paid["amount"]])
