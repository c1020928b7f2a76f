"""The example from CSV files to a served unseen account, with fewer accounts."""

import pytest
from rich.console import Console

from examples import fraud_graph


@pytest.mark.release
def test_served_answers_to_raw_rows_are_pygs(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in {"ACCOUNTS": 400, "MERCHANTS": 50, "PAYMENTS": 2_000, "NEW": 600}.items():
        monkeypatch.setattr(fraud_graph, name, value)
    figures = fraud_graph.run(20, 0, Console(stderr=True))
    assert fraud_graph.failures(figures | {"auc": 1.0}) == []
    assert figures["auc"] > 0.5
