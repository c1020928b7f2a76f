from __future__ import annotations

import numpy as np
import pytest

from hopline_mesh.changes import Context
from hopline_mesh.tagae import Tagae, TagaeSettings, expect
from tests.tagae.meshes import INTERVAL_S, START_S, incidents, node, play, watch

COUNT = 160
P99 = node("p99_ms")


@pytest.fixture(scope="module")
def trained():
    detector = Tagae(TagaeSettings(model="trained"))
    detector.fit(list(play(COUNT)), [Context()] * COUNT)
    return detector.export()


def test_noise_that_a_service_has_alone_is_not_expected_of_it(trained):
    gain = trained[1]["nodes.gain"]
    assert (gain[:, P99] == 0).all()
    assert np.isfinite(trained[1]["model.out.weight"]).all()


def test_a_trained_detector_finds_what_one_without_a_model_finds(trained):
    def edit(number, nodes, edges):
        if number >= 20:
            nodes[2, P99] *= 9

    start_s = START_S + COUNT * INTERVAL_S
    verdicts = watch(Tagae.restore(*trained), play(50, edit, seed=1, start_s=start_s))
    (incident,) = incidents(verdicts)
    assert incident.suspects[0].service == "store"


def test_more_services_than_at_training_are_taken_in(trained):
    start_s = START_S + COUNT * INTERVAL_S
    names = ["front", "cart", "store", "pay", *(f"new-{number}" for number in range(200))]
    verdicts = watch(Tagae.restore(*trained), play(30, seed=1, start_s=start_s, services=names))
    assert not incidents(verdicts)


def test_what_should_be_reconstructed_is_what_the_model_reads_and_gaps_do_not_count():
    detector = Tagae(TagaeSettings(model="none"))
    detector.fit(list(play(COUNT)), [Context()] * COUNT)

    def edit(number, nodes, edges):
        nodes[1, P99] = np.nan

    watch(detector, play(1, edit, start_s=START_S + COUNT * INTERVAL_S))
    x, h = expect.inputs(detector._nodes, np.arange(4, dtype=np.int32))
    targets = expect.targets(x)
    width = targets.shape[1]
    assert np.isnan(targets[1, P99])
    assert x[1, P99] == x[1, width + P99] == h[1, P99] == 0
    there = ~np.isnan(targets)
    np.testing.assert_array_equal(x[:, :width][there], targets[there])
    assert (x[:, width:][there] == 1).all()
