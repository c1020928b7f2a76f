"""The sink that is a precomputed file: what a run brings is what a server maps."""

import numpy as np
import pytest

from hopline.engine.precomputed_file import PrecomputedFile
from hopline.engine.precomputed_file.identity import id_hashes
from hopline.errors import SinkError
from hopline.jobs.batch import precomputed_sink
from hopline.jobs.batch.registry import open_sink
from hopline.jobs.batch.sink import Column, TableSchema

N = 50
STATE, LOGITS = Column("state", "float32", 4), Column("logits", "float32", 2)


def schema(columns=(STATE, LOGITS), **changes):
    about = {
        "run_id": "run",
        "model": "m",
        "version": "1",
        "model_hash": "a" * 64,
        "graph_version": "g",
        "node_type": "node",
        "part": "",
        "num_rows": N,
        "id_kind": "string",
        "columns": columns,
    }
    return TableSchema(**(about | changes))


def rows(begin, end):
    rng = np.random.default_rng(0)
    state, logits = rng.standard_normal((N, 4)), rng.standard_normal((N, 2))
    return {
        "id": [f"n{i}" for i in range(begin, end)],
        "state": state[begin:end].astype(np.float32),
        "logits": logits[begin:end].astype(np.float32),
    }


@pytest.mark.parametrize("address", ["precomputed:{}/a.precomputed", "{}/a.precomputed"])
def test_a_run_makes_a_table(tmp_path, address):
    sink = open_sink(address.format(tmp_path))
    assert sink.open(schema()) == 0
    for begin in range(0, N, 20):
        sink.write(begin, rows(begin, min(begin + 20, N)))
    assert not (tmp_path / "a.precomputed").exists()
    sink.commit()
    table = PrecomputedFile.open(tmp_path / "a.precomputed")
    table.verify()
    np.testing.assert_array_equal(table.state, rows(0, N)["state"])
    np.testing.assert_array_equal(table.logits, rows(0, N)["logits"])
    np.testing.assert_array_equal(table.ids, id_hashes(rows(0, N)["id"]))
    plan = table.header.plan
    assert (plan.model, plan.version, plan.graph_version, plan.num_nodes) == ("m", "1", "g", N)


def test_an_ended_attempt_goes_on_where_it_was_durable(tmp_path, monkeypatch):
    monkeypatch.setattr(precomputed_sink, "_NOTE_BYTES", 1)
    path = tmp_path / "a.precomputed"
    first = open_sink(str(path))
    first.open(schema())
    first.write(0, rows(0, 20))
    first.abort()
    assert open_sink(str(path)).open(schema(run_id="another")) == 0


def test_the_same_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(precomputed_sink, "_NOTE_BYTES", 1)
    path = tmp_path / "a.precomputed"
    first = open_sink(str(path))
    first.open(schema())
    first.write(0, rows(0, 20))
    first.abort()
    second = open_sink(str(path))
    assert second.open(schema()) == 20
    second.write(20, rows(20, N))
    second.commit()
    np.testing.assert_array_equal(PrecomputedFile.open(path).state, rows(0, N)["state"])


def test_parts_are_files_beside_each_other(tmp_path):
    sink = open_sink(str(tmp_path / "a.precomputed"))
    sink.open(schema(part="user", node_type="user"))
    sink.write(0, rows(0, N))
    sink.commit()
    assert [path.name for path in tmp_path.iterdir()] == ["a-user.precomputed"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": np.arange(N)}, "without a selection"),
        ({"columns": (LOGITS,)}, "this run has logits: add state"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, changes, message):
    with pytest.raises(SinkError, match=message):
        open_sink(str(tmp_path / "a.precomputed")).open(schema(**changes))
    with pytest.raises(SinkError, match="names no file"):
        open_sink("precomputed:")
    with pytest.raises(SinkError, match="cannot be written"):
        open_sink("/proc/a.precomputed").open(schema())
