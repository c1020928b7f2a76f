"""A mesh that is taken in parts is judged as one that is taken as a whole."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from hopline_mesh.changes import Context
from hopline_mesh.errors import StateDamaged
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Snapshot
from hopline_mesh.tagae import Tagae, TagaeSettings
from hopline_mesh.tagae.cut import Cut
from hopline_mesh.tagae.overall import Overall
from tests.tagae.meshes import _EDGE, _NODE, INTERVAL_S, START_S, incidents, node, watch

SPACES, EACH = 5, 8
LEARNT = 140
P99 = node("p99_ms")


def play(count, edit=None, *, seed=0, start_s=START_S, across=1):
    """Namespaces that call each other; half of the noise of a service is its callers'."""
    rng = np.random.default_rng(seed)
    n = SPACES * EACH
    roster = Roster(f"space{i // EACH}/service{i}" for i in range(n))
    inner = [(i, i + 1) for i in range(n) if (i + 1) % EACH]
    across = [(k * EACH, (k + 1 + j) % SPACES * EACH + 3 + j) for k in range(SPACES) for j in range(across)]
    src, dst = (np.array(ends, np.int32) for ends in zip(*inner, *across, strict=True))
    for number in range(count):
        nodes = _NODE * np.exp(0.03 * rng.normal(size=(n, len(_NODE))))
        edges = _EDGE * np.exp(0.03 * rng.normal(size=(len(src), len(_EDGE))))
        if edit is not None:
            edit(number, nodes)
        slots = np.arange(n, dtype=np.int32)
        yield Snapshot(
            start_s + INTERVAL_S * number, Schema(), roster, slots, nodes.astype(np.float32), src, dst,
            edges.astype(np.float32),
        )  # fmt: skip


@pytest.fixture(scope="module")
def state():
    detector = Tagae(TagaeSettings(model="untrained", window_size=60))
    detector.fit(list(play(LEARNT)), [Context()] * LEARNT)
    for table in detector._tables:
        table.gain[:] = 0.2  # so that what the model says counts
    return detector.export()


def restored(state, above, threads=16):
    machine = TagaeSettings(partition_above=above, threads=threads)
    return Tagae.restore(json.loads(json.dumps(state[0])), state[1], machine)


def fault(number, nodes):
    if 10 <= number < 40:
        nodes[2 * EACH + 3, P99] *= 9


def following(count, edit=None, seed=1, across=1):
    return play(count, edit, seed=seed, start_s=START_S + LEARNT * INTERVAL_S, across=across)


def test_parts_expect_and_judge_what_the_whole_mesh_does(state):
    whole, parts = restored(state, 1000), restored(state, 16)
    told = []
    for snapshot in following(50, fault):
        verdicts = [detector.step(snapshot, Context()) for detector in (whole, parts)]
        assert verdicts[0].state == verdicts[1].state
        assert verdicts[0].score == pytest.approx(verdicts[1].score, abs=1e-3)
        expectation = whole._expectation
        expected = expectation.encoder.result(expectation.graph)
        for a, b in zip((expected.nodes, expected.edges), parts._sweep._expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)
        told.append([[(i.start_s, i.end_s, i.suspects[0].service) for i in v.incidents] for v in verdicts])
    assert all(ours == theirs for ours, theirs in told)
    assert any(ours for ours, _ in told)
    assert whole._parts is None
    assert len(parts._expectation._in_parts.parts) == parts._cut.num_parts == SPACES


@pytest.mark.parametrize("threads", [2, 3])
def test_parts_that_would_take_longer_are_not_taken(state, threads):
    detector, passes = restored(state, 16, threads), 0
    encode = detector._expectation.encoder.ready

    def counted(*given):
        nonlocal passes
        passes += 1
        return encode(*given)

    detector._expectation.encoder.ready = counted
    watch(detector, following(10, across=4))
    assert passes == (10 if threads == 2 else 9)  # after a first look at how large halos are


def test_a_fault_across_parts_is_one_incident_at_its_root(state):
    (incident,) = incidents(watch(restored(state, 16), following(40, fault)))
    assert incident.suspects[0].service == f"space2/service{2 * EACH + 3}"


def test_parts_and_what_is_usual_of_them_outlive_a_restart(state):
    detector = restored(state, 16)
    intervals = list(following(150))
    watch(detector, intervals[:130])
    meta, arrays = detector.export()
    assert meta["overall"]["model"] is not None
    again = restored((meta, arrays), 16)
    for snapshot in intervals[130:]:
        assert again.step(snapshot, Context()) == detector.step(snapshot, Context())
    np.testing.assert_array_equal(again._cut._of_slot, detector._cut._of_slot)
    others = restored((meta, arrays), 12)  # parts of another size are begun anew
    others.step(intervals[130], Context())
    assert (others._cut.version, others._overall._model) == (1, None)
    with pytest.raises(StateDamaged, match="parts of the mesh"):
        restored((meta | {"cut": meta["cut"] | {"parts": [7]}}, arrays), 16)
    with pytest.raises(StateDamaged, match="does not match the scores"):
        restored((meta, arrays | {"overall.usual": np.zeros((3, 2))}), 16)


def test_a_restart_takes_threads_and_device_of_the_machine_it_is_on(state):
    meta = state[0] | {"settings": state[0]["settings"] | {"device": "cuda"}}
    detector = Tagae.restore(meta, state[1], TagaeSettings(threads=1, partition_above=7))
    assert (detector.settings.device, detector.settings.threads) == ("cpu", 1)
    assert detector.settings.partition_above == 7
    assert detector.settings.window_size == 60


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_judges_as_the_processor_does(state):
    verdicts = []
    for device in ("cpu", "cuda"):
        machine = TagaeSettings(device=device)
        verdicts.append(watch(Tagae.restore(*state, machine), following(50, fault)))
    assert [verdict.state for verdict in verdicts[0]] == [verdict.state for verdict in verdicts[1]]


def snapshot_of(names, present):
    (one,) = play(1)
    n = len(present)
    slots = np.array(present, np.int32)
    none = np.zeros(0, np.int32)
    return replace(
        one, roster=Roster(names), nodes=slots, node_features=np.ones((n, len(_NODE)), np.float32),
        edge_src=none, edge_dst=none, edge_features=np.ones((0, len(_EDGE)), np.float32),
    )  # fmt: skip


def test_parts_stay_while_services_come_and_go_until_one_is_twice_too_large():
    cut = Cut(8)
    names = [f"a{i % 5}/s{i}" for i in range(10)]
    before = cut.parts(snapshot_of(names, range(10)))
    names += ["a0/new", "b/new"]
    after = cut.parts(snapshot_of(names, [*range(1, 10), 10, 11]))
    assert cut.version == 1
    np.testing.assert_array_equal(after[:9], before[1:])
    assert after[9] == before[0]
    names += [f"b/many{i}" for i in range(20)]
    assert cut.parts(snapshot_of(names, range(len(names)))) is not None
    assert cut.version == 2
    assert cut.parts(snapshot_of(names, range(8))) is None


def test_a_mesh_of_one_namespace_is_taken_as_a_whole():
    cut = Cut(4)
    assert cut.parts(snapshot_of([f"a/s{i}" for i in range(10)], range(10))) is None


def test_all_parts_a_little_too_high_for_long_enough_raise_the_score():
    rng = np.random.default_rng(0)
    overall = Overall(100, 99.0)
    normal = rng.gamma(2.0, [0.1, 0.2, 0.05, 0.1], (300, 4))
    said = [overall.judge(row, 1, hold=3, learn=True) for row in normal]
    assert max(said[:100]) == 0
    assert np.mean(np.array(said[100:]) > 1) < 0.01
    high = np.quantile(normal, 0.98, axis=0)
    assert [overall.judge(high, 1, hold=3, learn=False) > 1 for _ in range(3)] == [False, False, True]
    assert overall.judge(high, 2, hold=3, learn=False) == 0  # another cut
