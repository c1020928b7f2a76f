"""Training's sampled batches, against a forward pass over the edges that the sampler chose."""

import numpy as np
import torch

from hopline.graph import Graph
from hopline_demo.learning import FraudSAGE, Neighborhoods
from hopline_demo.network import generate
from hopline_demo.recipe import Quality, Recipe, hold_out


def test_batch_on_full_neighbourhoods_equals_whole_graph() -> None:
    network = generate(500, 2_000)
    edges = np.stack([network.payer, network.payee])
    graph = Graph.from_edges(edges, network.features)
    torch.manual_seed(0)
    model = FraudSAGE(network.features).eval()
    seeds = np.array([7, 3, 499, 120])
    ids, blocks = Neighborhoods(graph, [-1, -1], salt=5)(seeds)
    with torch.no_grad():
        whole = model(torch.from_numpy(network.features), torch.from_numpy(edges))
        batch = model.on_blocks(torch.from_numpy(network.features[ids]), blocks)
    assert ids[:4].tolist() == seeds.tolist()
    assert len(np.unique(ids)) == len(ids)
    torch.testing.assert_close(batch, whole[seeds], rtol=1e-4, atol=1e-4)


def test_fanouts_bound_each_layer() -> None:
    network = generate(500, 5_000)
    graph = Graph.from_edges(np.stack([network.payer, network.payee]), network.features)
    seeds = np.arange(20)
    _, blocks = Neighborhoods(graph, [4, 2], salt=0)(seeds)
    assert blocks[1].num_dst == 20
    for block, fanout in zip(blocks, (2, 4), strict=True):
        counts = np.bincount(block.edges[1].numpy(), minlength=block.num_dst)
        degrees = np.diff(graph.edge().indptr)
        assert counts.max() == fanout
        assert len(counts) == block.num_dst
        assert counts[:20].tolist() == np.minimum(degrees[:20], fanout).tolist()


def test_whole_rings_are_held_out() -> None:
    network = generate(5_000, 20_000)
    held_out = hold_out(network, seed=0)
    for ring in range(network.num_rings):
        assert len(np.unique(held_out[network.ring == ring])) == 1
    assert 0.2 < held_out[network.is_fraud].mean() < 0.45
    assert 0.25 < held_out[~network.is_fraud].mean() < 0.35


def test_quality_of_a_perfect_and_a_reversed_order() -> None:
    is_fraud = np.array([False, True, False, True])
    scores = np.array([0.1, 0.9, 0.2, 0.8], np.float32)
    assert Quality.of(is_fraud, scores) == Quality(1.0, 1.0, 1.0)
    assert Quality.of(is_fraud, -scores).auc == 0.0


def test_small_networks_train_for_more_epochs() -> None:
    assert Recipe.of(200_000, 2_000_000).epochs < Recipe.of(8_000, 80_000).epochs
    assert Recipe.of(8_000, 80_000, epochs=2).epochs == 2
