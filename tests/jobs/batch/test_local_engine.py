"""Spans on threads: handed over in order, whoever fails."""

import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from hopline.artifact import read_spec
from hopline.errors import SinkError
from hopline.jobs.batch.local import LocalEngine
from hopline.jobs.batch.states import RowFile, create
from hopline.jobs.batch.work import LevelWork, Shaper
from tests.jobs.batch.conftest import computed

SPAN = 7


@pytest.fixture
def level(cases, tmp_path):
    """The first level of GraphSAGE in spans of seven rows: (engine, work, states as they must be)."""
    case = cases["sage"]
    graph, spec = case.graph, read_spec(case.folder)
    features = np.ascontiguousarray(graph.node().features, np.float32)
    np.save(tmp_path / "x.npy", features)
    dim = spec.levels[1]["node"].state_dim
    ids = np.arange(graph.num_nodes)
    right = computed(case.folder, spec, graph, (1, "node"), ids, {"node": features})
    out = tmp_path / "states" / "1.npy"
    create(out, graph.num_nodes, dim)
    work = LevelWork(
        model_folder=case.folder,
        graph_folder=graph.path,
        level=1,
        node_type="node",
        exact=False,
        below={"node": tmp_path / "x.npy"},
        raw=None,
        out=out,
        num_nodes=graph.num_nodes,
        dim=dim,
        num_rows=graph.num_nodes,
        span_rows=SPAN,
    )
    return LocalEngine(graph, spec, 3), work, right


def spans_of(work):
    return [(a, min(a + SPAN, work.num_rows)) for a in range(0, work.num_rows, SPAN)]


@contextmanager
def ends_soon():
    """Nothing waits for ever."""
    before = threading.active_count()
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 30
    assert threading.active_count() == before


@pytest.mark.parametrize("saves", [False, True])
def test_what_is_made_of_spans_comes_in_their_order(level, saves):
    engine, work, right = level
    rng = np.random.default_rng(0)
    waits = dict(zip([a for a, _ in spans_of(work)], rng.random(100) * 0.01, strict=False))
    got = []

    def shape(begin, states):
        time.sleep(waits[begin])  # threads overtake each other
        return begin, states

    def done(span, num_edges, made, saved):
        assert made[0] == span[0]
        assert saved == saves
        got.append(made[1].copy())

    with ends_soon():
        engine.run_shaped(work, spans_of(work), Shaper(shape, lambda: saves), done)
    assert np.array_equal(np.concatenate(got), right)
    file = RowFile(work.out)
    assert np.array_equal(file.array, right if saves else np.zeros_like(right))
    file.close()


def test_a_receiver_that_fails_ends_the_run(level):
    engine, work, _ = level

    def done(span, num_edges, made, saved):
        raise SinkError("the disk is full")

    with ends_soon(), pytest.raises(SinkError, match="the disk is full"):
        engine.run_shaped(work, spans_of(work), Shaper(lambda begin, states: None, lambda: False), done)


@pytest.mark.parametrize("where", [0, 35])
def test_a_thread_that_fails_ends_the_run(level, where):
    engine, work, _ = level
    got = []

    def shape(begin, states):
        if begin == where:
            raise SinkError(f"row {begin}")

    def done(span, num_edges, made, saved):
        got.append(span)

    with ends_soon(), pytest.raises(SinkError, match=f"row {where}"):
        engine.run_shaped(work, spans_of(work), Shaper(shape, lambda: False), done)
    assert got == [span for span in spans_of(work) if span[0] < where][: len(got)]
