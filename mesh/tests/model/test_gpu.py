"""The GPU's tensor program gives what the CPU's pass gives; on a GPU itself where there is one."""

import numpy as np
import pytest
import torch

from hopline.errors import ConfigError
from hopline_mesh.model.device import check_device, encoder_for
from hopline_mesh.model.encoder import Encoder
from hopline_mesh.model.gpu import GpuEncoder, padded_size
from hopline_mesh.model.graph import MeshGraph

from .meshes import BARE, ODD, SMALL, USUAL, edges_of, graph_of, inputs_of, weights_of

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def compare(shape, device, tolerance):
    weights = weights_of(shape)
    here, there = Encoder(weights, bfloat16=False), GpuEncoder(weights, device)
    for seed, n in enumerate((1, 60, 200, 60, 700)):
        sources, targets = edges_of(n, 4 * n, seed) if n > 1 else (np.zeros(0, np.int32),) * 2
        given = inputs_of(shape, n, len(sources), seed)
        mask = np.random.default_rng(seed).random(n) < 0.9
        graph = graph_of(n, sources, targets, mask)
        expected = here.reconstruct(graph, *given, node_mask=mask)
        found = there.reconstruct(graph, *given, node_mask=mask)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [SMALL, USUAL, ODD, BARE])
def test_the_tensor_program_gives_what_the_compiled_pass_gives(shape):
    compare(shape, "cpu", 1e-3)


@on_a_gpu
@pytest.mark.parametrize("shape", [SMALL, USUAL, ODD, BARE])
def test_a_gpu_gives_what_the_cpu_gives(shape):
    compare(shape, "cuda", 1e-4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
def test_a_pass_follows_call_paths_that_change_and_inputs_that_do_not(device):
    weights, n = weights_of(USUAL), 60
    encoder, graph = GpuEncoder(weights, device), MeshGraph()
    given = inputs_of(USUAL, n, 100)
    for seed in (0, 1, 1):
        graph.update(n, *edges_of(n, 100, seed))
        expected = Encoder(weights, bfloat16=False).reconstruct(graph, *given)
        for a, b in zip(encoder.reconstruct(graph, *given), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_sizes_are_few_and_never_too_small():
    sizes = {padded_size(n) for n in range(20_001)}
    assert len(sizes) < 20
    assert all(n <= padded_size(n) <= max(128, 1.5 * n) for n in range(20_001))


def test_few_sizes_are_kept():
    encoder = GpuEncoder(weights_of(SMALL), "cpu")
    for n in (10, 200, 400, 800, 1600, 10):
        sources, targets = edges_of(n, n)
        given = inputs_of(SMALL, n, len(sources))
        encoder.reconstruct(graph_of(n, sources, targets), *given)
    assert len(encoder._sizes) == 4


def test_a_device_that_is_not_there_is_refused():
    assert isinstance(encoder_for(weights_of(SMALL), "cpu"), Encoder)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no CUDA device"):
            encoder_for(weights_of(SMALL), "cuda")


def test_a_missing_library_is_named_and_said_how_to_get(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(ConfigError, match=r"needs torch; pip install 'hopline-mesh\[train\]'"):
        check_device("cuda")
    check_device("cpu")


@on_a_gpu
def test_a_device_number_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="cuda:99 cannot be used"):
        check_device("cuda:99")
