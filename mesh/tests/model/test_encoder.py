"""The compiled pass gives what NumPy, PyTorch and PyG give, whatever size, mask or threads."""

import gc
import threading

import numpy as np
import pytest
import torch
from torch_geometric.nn import GATv2Conv

from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.model import reference, torch_model
from hopline_mesh.model.buffers import bfloat16
from hopline_mesh.model.eight_bits import HAS_EIGHT_BITS
from hopline_mesh.model.encoder import Encoder
from hopline_mesh.model.graph import MeshGraph
from hopline_mesh.model.lanes import HAS_BFLOAT16
from hopline_mesh.model.passes import run_alone
from hopline_mesh.model.shape import ModelShape
from hopline_mesh.model.torch_model import Inputs
from hopline_mesh.model.weights import Weights

from .meshes import BARE, ODD, SMALL, USUAL, WATCHED, edges_of, graph_of, inputs_of, weights_of

CLOSE = {"rtol": 1e-4, "atol": 2e-5}


@pytest.mark.parametrize("shape", [SMALL, USUAL, WATCHED, ODD, BARE])
@pytest.mark.parametrize(("n", "e"), [(1, 0), (2, 1), (30, 90), (500, 3000)])
def test_a_pass_gives_what_numpy_and_pytorch_give(shape, n, e):
    weights = weights_of(shape)
    sources, targets = edges_of(n, e)
    x, h, edge, g = inputs_of(shape, n, len(sources))
    found = Encoder(weights, bfloat16=False).reconstruct(graph_of(n, sources, targets), x, h, edge, g)

    z = reference.encode(weights, sources, targets, x, h, edge)
    nodes, edges, there = reference.decode(weights, z, sources, targets, g)
    np.testing.assert_allclose(found.z, z, **CLOSE)
    np.testing.assert_allclose(found.nodes, nodes, **CLOSE)
    np.testing.assert_allclose(found.edges, edges, **CLOSE)
    np.testing.assert_allclose(found.links, there, rtol=1e-3, atol=1e-3)

    twin = {name: torch.from_numpy(array) for name, array in weights.arrays.items()}
    ends = torch.from_numpy(np.stack([sources, targets]).astype(np.int64))
    given = Inputs(*map(torch.from_numpy, (x, h)), ends, *map(torch.from_numpy, (edge, g)))
    z = torch_model.encode(shape, twin, given)
    np.testing.assert_allclose(found.z, z, **CLOSE)
    np.testing.assert_allclose(found.nodes, torch_model.decode_nodes(twin, z), **CLOSE)
    np.testing.assert_allclose(found.edges, torch_model.decode_edges(twin, z, ends, given.g), **CLOSE)
    links = torch_model.link_logits(twin, z, ends)
    np.testing.assert_allclose(found.links, links, rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(not HAS_BFLOAT16, reason="the processor has no bfloat16")
@pytest.mark.parametrize("shape", [SMALL, USUAL, WATCHED, ODD, BARE])
@pytest.mark.parametrize(("n", "e"), [(1, 0), (2, 1), (30, 90), (500, 3000)])
def test_with_bfloat16_a_pass_gives_what_numpy_gives_of_rounded_rows(shape, n, e):
    weights = weights_of(shape)
    sources, targets = edges_of(n, e)
    x, h, edge, g = inputs_of(shape, n, len(sources))
    found = Encoder(weights, bfloat16=True).reconstruct(graph_of(n, sources, targets), x, h, edge, g)
    z = reference.encode(
        weights, sources, targets, x, h, edge, rounded=reference.bfloat16, eight_bits=HAS_EIGHT_BITS
    )
    expected = (z, *reference.decode(weights, z, sources, targets, g, reference.bfloat16))
    plain = reference.encode(weights, sources, targets, x, h, edge)
    exact = (plain, *reference.decode(weights, plain, sources, targets, g))
    for mine, rounded, whole in zip(found, expected, exact, strict=True):
        if not mine.size:
            continue
        most = (3e-2 if HAS_EIGHT_BITS else 2e-2) * max(1.0, np.abs(whole).max())
        assert np.abs(mine - whole).max() <= most
        # Here and there a number in the middle is rounded the other way.
        apart = np.abs(mine - rounded)
        assert apart.max() <= most
        if n > 2:
            assert apart.mean() <= 0.2 * np.abs(rounded - whole).mean() + 1e-6


def test_bfloat16_is_rounded_to_the_nearest_and_to_even():
    numbers = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8 - 2**-20, 3.0e38, 0.0], np.float32)
    wanted = np.array([1.0, 1.0, 1 + 2**-6, -1 - 2**-7, 3.0e38, 0.0], np.float32)
    np.testing.assert_allclose(reference.bfloat16(numbers), wanted, rtol=2**-8, atol=0)
    assert (reference.bfloat16(numbers)[:4] == wanted[:4]).all()
    assert (bfloat16(numbers).astype(np.uint32) << 16).view(np.float32).tolist() == (
        reference.bfloat16(numbers).tolist()
    )


@pytest.mark.parametrize("shape", [SMALL, USUAL, WATCHED, ODD])
def test_what_call_paths_usually_show_changes_nothing(shape):
    weights, n = weights_of(shape), 60
    sources, targets = edges_of(n, 400)
    graph = graph_of(n, sources, targets)
    x, h, edge, _ = inputs_of(shape, n, len(sources))
    edge[:, -1] = np.random.default_rng(0).random(len(sources)) < 0.9
    usual = np.zeros(shape.d_edge, np.float32)
    usual[-1] = 1.0
    z = Encoder(weights, bfloat16=False).encode(graph, x, h, edge).copy()
    np.testing.assert_allclose(
        Encoder(weights, bfloat16=False, usual_edge=usual).encode(graph, x, h, edge), z, **CLOSE
    )


@pytest.mark.parametrize("d_edge", [0, 3])
@pytest.mark.parametrize(("hidden", "heads"), [(128, 4), (64, 4), (64, 2)])
@pytest.mark.parametrize(("listens", "shared"), [("callers", True), ("callers", False), ("callees", False)])
def test_without_a_temporal_term_a_layer_is_pygs_gatv2(d_edge, hidden, heads, listens, shared):
    shape = ModelShape(
        9, 0, d_edge, 0, 0, hidden=hidden, heads=heads, layers=1, d_out=hidden, directions=(listens,),
        shared=shared,
    )  # fmt: skip
    torch.manual_seed(0)
    conv = GATv2Conv(
        9, hidden // heads, heads=heads, add_self_loops=False, edge_dim=d_edge or None, share_weights=shared
    ).eval()
    torch.nn.init.normal_(conv.bias)
    arrays = {name: np.zeros(size, np.float32) for name, size in shape.parameters().items()}
    arrays |= {
        "layers.0.source.weight": conv.lin_l.weight.detach().numpy(),
        "layers.0.source.bias": conv.lin_l.bias.detach().numpy(),
        "layers.0.attention": conv.att.detach().numpy()[0],
        "layers.0.bias": conv.bias.detach().numpy(),
        "out.weight": np.eye(hidden, dtype=np.float32),
    }
    if not shared:
        arrays["layers.0.target.weight"] = conv.lin_r.weight.detach().numpy()
        arrays["layers.0.target.bias"] = conv.lin_r.bias.detach().numpy()
    if d_edge:
        arrays["layers.0.edge.weight"] = conv.lin_edge.weight.detach().numpy()
    n = 60
    sources, targets = edges_of(n, 300)
    x, h, edge, _ = inputs_of(shape, n, len(sources))
    z = Encoder(Weights(shape, arrays), bfloat16=False).encode(graph_of(n, sources, targets), x, h, edge)
    ends = torch.from_numpy(np.stack([sources, targets]).astype(np.int64))
    with torch.inference_mode():
        expected = conv(
            torch.from_numpy(x),
            ends if listens == "callers" else ends.flip(0),
            torch.from_numpy(edge) if d_edge else None,
        )
    np.testing.assert_allclose(z, expected, **CLOSE)


def test_rows_that_fill_up_change_nothing():
    weights, n, padded = weights_of(SMALL), 40, 100
    sources, targets = edges_of(n, 160)
    x, h, edge, _ = inputs_of(SMALL, n, len(sources))
    z = Encoder(weights).encode(graph_of(n, sources, targets), x, h, edge).copy()

    rng = np.random.default_rng(1)
    where = np.sort(rng.choice(padded, n, replace=False)).astype(np.int32)
    mask = np.zeros(padded, bool)
    mask[where] = True
    wide_x, wide_h, _, _ = inputs_of(SMALL, padded, 0, seed=9)
    wide_x[where], wide_h[where] = x, h
    stray = np.flatnonzero(~mask).astype(np.int32)[:20]
    sources = np.concatenate([where[sources], stray, where[:20]])
    targets = np.concatenate([where[targets], where[:20], stray])
    edge = np.concatenate([edge, rng.normal(size=(40, SMALL.d_edge)).astype(np.float32)])
    masked = Encoder(weights).encode(
        graph_of(padded, sources, targets, mask), wide_x, wide_h, edge, node_mask=mask
    )
    np.testing.assert_allclose(masked[where], z, rtol=0, atol=1e-6)
    assert not masked[~mask].any()


def test_large_scores_overflow_nothing():
    weights = weights_of(SMALL)
    arrays = weights.arrays | {
        name: array * 300 for name, array in weights.arrays.items() if name.endswith("attention")
    }
    weights = Weights(SMALL, arrays)
    sources, targets = edges_of(30, 120)
    x, h, edge, _ = inputs_of(SMALL, 30, len(sources))
    z = Encoder(weights, bfloat16=False).encode(graph_of(30, sources, targets), 10 * x, h, edge)
    expected = reference.encode(weights, sources, targets, 10 * x, h, edge)
    np.testing.assert_allclose(z, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [USUAL, WATCHED])
def test_two_threads_give_what_one_gives_bit_for_bit_again_and_again(shape):
    weights, n = weights_of(shape), 700
    sources, targets = edges_of(n, 4000)
    graph = graph_of(n, sources, targets)
    one, two = Encoder(weights, threads=1), Encoder(weights, threads=2)
    for seed in range(20):
        given = inputs_of(shape, n, len(sources), seed)
        for a, b in zip(one.reconstruct(graph, *given), two.reconstruct(graph, *given), strict=True):
            assert np.array_equal(a, b)


def test_a_plan_that_is_ready_is_of_what_was_given_last():
    encoder, weights = Encoder(weights_of(SMALL), threads=1), weights_of(SMALL)
    graph = graph_of(40, *edges_of(40, 120))
    first, second = inputs_of(SMALL, 40, 120, 1), inputs_of(SMALL, 40, 120, 2)

    def by_plan(given):
        run_alone(encoder.ready(graph, *given))
        return [array.copy() for array in encoder.result(graph)[:3]]  # a step does not ask for links

    def afresh(given):
        return Encoder(weights, threads=1).reconstruct(graph, *given)[:3]

    def agree(given):
        for a, b in zip(by_plan(given), afresh(given), strict=True):
            np.testing.assert_array_equal(a, b)

    agree(first)
    first[0] += 1  # other numbers in the same memory
    agree(first)
    encoder.reconstruct(graph, *second)  # places the plan elsewhere
    agree(first)
    agree(second)
    encoder.encode(graph, *first[:3])  # other phases
    agree(second)
    sources, targets = edges_of(40, 120, seed=9)
    assert graph.update(40, sources, targets)
    agree(second)


def test_an_encoder_takes_its_second_thread_with_it():
    encoder = Encoder(weights_of(SMALL), threads=2)
    sources, targets = edges_of(700, 4000)
    before = threading.active_count()
    encoder.encode(graph_of(700, sources, targets), *inputs_of(SMALL, 700, len(sources))[:3])
    (thread,) = [each for each in threading.enumerate() if each.name == "mesh-second"][-1:]
    assert threading.active_count() == before + 1
    del encoder
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()


def test_a_mesh_that_grows_and_shrinks_is_computed_as_if_anew():
    weights, graph = weights_of(SMALL), MeshGraph()
    encoder = Encoder(weights)
    for seed, n in enumerate((3, 50, 7, 400, 400, 1)):
        sources, targets = edges_of(n, 3 * (n - 1), seed)
        given = inputs_of(SMALL, n, len(sources), seed)
        graph.update(n, sources, targets)
        found = encoder.reconstruct(graph, *given)
        fresh = Encoder(weights).reconstruct(graph_of(n, sources, targets), *given)
        for a, b in zip(found, fresh, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_decoding_given_embeddings_gives_what_a_whole_pass_gives():
    weights, n = weights_of(SMALL), 50
    sources, targets = edges_of(n, 150)
    graph, given = graph_of(n, sources, targets), inputs_of(SMALL, n, len(sources))
    whole = [array.copy() for array in Encoder(weights).reconstruct(graph, *given)]
    apart = Encoder(weights).decode(graph, whole[0], given[3])
    for a, b in zip(whole, apart, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_arrays_of_another_shape_are_refused_by_name():
    encoder = Encoder(weights_of(SMALL))
    sources, targets = edges_of(10, 20)
    graph = graph_of(10, sources, targets)
    x, h, edge, _ = inputs_of(SMALL, 10, len(sources))
    with pytest.raises(SnapshotInvalid, match=r"model's h is \(9, 5\), not \(10, 5\)"):
        encoder.encode(graph, x, h[:9], edge)
    with pytest.raises(SnapshotInvalid, match="needs g"):
        encoder.reconstruct(graph, x, h, edge)
    with pytest.raises(SnapshotInvalid, match="node mask"):
        encoder.encode(graph, x, h, edge, np.ones(3, bool))
