"""Quantised versions against their originals."""

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from hopline.artifact import read_spec, write_spec
from hopline.config.reader import load_config
from hopline.errors import ParityError
from hopline.jobs.batch.npy import NpyFolder
from hopline.jobs.batch.run import BatchRun
from hopline.runtimes import processor
from hopline.runtimes.processor import adds_in_16_bits
from hopline.service import Service
from hopline_compress.quantize.forms import Forms
from hopline_compress.quantize.nodes import degrees
from hopline_compress.quantize.run import QuantizeOptions, quantize
from packages.compress.tests.quantize.conftest import N, logits

#: Random models have classes close together: few nodes change, and those that do may.
LOOSE = 5.0


@pytest.fixture(scope="module")
def int8(cases, tmp_path_factory):
    case = cases["sage"]
    repository = tmp_path_factory.mktemp("int8")
    return quantize(case.folder, case.graph, repository, QuantizeOptions(max_drop=LOOSE))


def test_an_int8_version_is_a_quarter_as_large_and_answers_the_same_labels(cases, int8):
    case = cases["sage"]
    before, after = logits(case.folder, case.graph), logits(Path(int8.path), case.graph)
    assert not np.array_equal(before, after)
    assert (before.argmax(1) == after.argmax(1)).mean() > 0.95
    assert int8.size_ratio < 0.5  # scales and further operators weigh as much as small weights do
    assert [layer.form for layer in int8.layers] == ["int8"] * len(int8.layers)


def test_the_version_says_what_it_is(cases, int8):
    spec, original = read_spec(Path(int8.path)), read_spec(cases["sage"].folder)
    assert (spec.name, spec.version) == ("sage", "1-int8")
    assert spec.levels == original.levels
    assert spec.parity["original"] == original.parity
    assert spec.parity["quantized"]["from"] == "sage/1"
    assert spec.parity["quantized"]["weight_bits"] == int8.weight_bits == (7 if adds_in_16_bits() else 8)
    assert spec.parity["max_abs_diff"] == int8.figures.overall.max_abs_diff > 1e-4


def test_a_row_does_not_depend_on_its_batch_mates(cases, int8):
    graph = cases["sage"].graph
    together = logits(Path(int8.path), graph)
    nodes = [0, 1, 77, N - 1]
    alone = [logits(Path(int8.path), graph, [f"n{i}"])[0] for i in nodes]
    assert np.array_equal(together[nodes], alone)


def test_a_layer_that_hurts_stays_as_it_is_and_is_reported(cases, tmp_path):
    case = cases["fragile"]
    report = quantize(case.folder, case.graph, tmp_path, QuantizeOptions(max_drop=LOOSE))
    kept = [layer for layer in report.layers if layer.form == "float32"]
    assert [layer.name.split("/")[0] for layer in kept] == ["2.node"] or kept[0].name.startswith("head")
    assert kept[0].drop > LOOSE
    assert "points (" in kept[0].why
    assert report.figures.drop <= LOOSE
    assert any(layer.form == "int8" for layer in report.layers)


def test_layers_that_hurt_may_be_kept_in_float16(cases, tmp_path):
    case = cases["fragile"]
    options = QuantizeOptions(max_drop=LOOSE, fallback_dtype="float16")
    report = quantize(case.folder, case.graph, tmp_path, options)
    forms = {layer.form for layer in report.layers}
    assert "int8" in forms
    assert report.figures.drop <= LOOSE
    for layer in report.layers:
        assert (layer.form == "int8") == (not layer.why)


def test_beyond_the_gate_nothing_is_written(cases, tmp_path):
    case = cases["fragile"]
    layers = Forms(case.folder, read_spec(case.folder)).layers
    others = tuple(layer.name for layer in layers if 40 not in layer.shape)
    options = QuantizeOptions(max_drop=LOOSE, exclude=others)
    with pytest.raises(ParityError, match=r"nothing was written: .* points \(.*degree"):
        quantize(case.folder, case.graph, tmp_path / "models", options)
    assert not (tmp_path / "models").exists()


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["gat", "gine", "link", "states"])
def test_attention_blocks_pairs_and_embeddings(cases, blocks, name, tmp_path):
    case = blocks if name == "gine" else cases[name]
    report = quantize(case.folder, case.graph, tmp_path, QuantizeOptions(max_drop=LOOSE, eval_nodes=400))
    assert report.bytes_after < report.bytes_before
    assert 0 < report.figures.difference < LOOSE
    assert {latency.rows for latency in report.latency_request} == {1, 400}


@pytest.mark.parametrize("to", ["float16", "bfloat16"])
def test_narrow_weights_halve_the_size(cases, to, tmp_path):
    case = cases["sage"]
    report = quantize(case.folder, case.graph, tmp_path, QuantizeOptions(to=to, max_drop=LOOSE))
    weights = sum(np.prod(layer.shape) for layer in report.layers)
    assert report.bytes_after < report.bytes_before - 1.7 * weights
    assert report.weight_bits is None
    step = 2**-8 if to == "bfloat16" else 2**-11
    assert 0 < report.figures.difference < 100 * 3 * step


def test_accuracy_is_judged_where_labels_are_given(cases, tmp_path):
    case = cases["sage"]
    before = logits(case.folder, case.graph)
    labels = before.argmax(1)
    labels[::3] = (labels[::3] + 1) % 40  # the model is right on two thirds
    labels[-50:] = -1
    np.save(tmp_path / "labels.npy", labels)
    options = QuantizeOptions(max_drop=LOOSE, labels=tmp_path / "labels.npy", eval_nodes=N)
    report = quantize(case.folder, case.graph, tmp_path, options)
    assert report.labels
    degree = degrees(case.graph, "node")
    after = logits(Path(report.path), case.graph).argmax(1)
    known = sum(bucket.nodes for bucket in report.figures.buckets)
    assert 0 < known <= N - 50
    assert degree.sum() == 6000
    assert report.figures.overall.before == pytest.approx(100 * 2 / 3, abs=4)
    right = (after == labels)[labels >= 0].mean()
    assert report.figures.overall.after == pytest.approx(100 * right, abs=4)


async def test_who_loads_weights_that_may_overflow_here_is_warned(
    cases, int8, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(processor, "adds_in_16_bits", lambda: True)
    folder = tmp_path / "models" / "sage" / "1-int8"
    shutil.copytree(int8.path, folder)
    spec = read_spec(folder)
    told = {**spec.parity, "quantized": {**spec.parity["quantized"], "weight_bits": 8}}
    write_spec(folder, msgspec.structs.replace(spec, parity=told))
    graph = cases["sage"].graph.path

    BatchRun(folder, graph, tmp_path / "work").run(lambda: NpyFolder(tmp_path / "out"))
    assert caplog.text.count("int8 weights of 8 bits") == 1

    config = {"models.repository": folder.parents[1], "graph.path": graph}
    service = Service(load_config(overrides=config))
    await service.start()
    await service.close()
    assert caplog.text.count("int8 weights of 8 bits") == 2
