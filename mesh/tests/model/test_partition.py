"""Parts with a whole halo give what the whole mesh gives; the meta-model keeps its word on normal time."""

import numpy as np
import pytest

from hopline_mesh.errors import MeshError, StateDamaged
from hopline_mesh.model.encoder import Encoder
from hopline_mesh.model.meta import MetaModel
from hopline_mesh.model.partition import PartEncoder, group_sizes, part_scores, split

from .meshes import ODD, SMALL, edges_of, graph_of, inputs_of, weights_of


def spaced_mesh(n, e, spaces, seed=0):
    """Services call mostly within their namespace."""
    rng = np.random.default_rng(seed)
    groups = np.sort(rng.integers(0, spaces, n)).astype(np.int32)
    sources, targets = edges_of(n, 4 * e, seed)
    kept = (groups[sources] == groups[targets]) | (rng.random(len(sources)) < 0.05)
    return groups, sources[kept], targets[kept]


@pytest.mark.parametrize("shape", [SMALL, ODD])
def test_parts_with_a_whole_halo_give_what_the_whole_mesh_gives(shape):
    n = 200
    groups, sources, targets = spaced_mesh(n, 300, 7)
    graph, given = graph_of(n, sources, targets), inputs_of(shape, n, len(sources))
    weights = weights_of(shape)
    whole = Encoder(weights).reconstruct(graph, *given)
    parts = PartEncoder(weights)
    for _ in range(2):  # the second time with what the first prepared
        found = parts.reconstruct(graph, group_sizes(groups, 60), *given)
        for a, b in zip(found, whole, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert len(parts.parts) > 2
    assert all(len(part.nodes) < n for part in parts.parts)
    parts.close()


def test_each_node_and_edge_belongs_to_one_part():
    groups, sources, targets = spaced_mesh(300, 500, 9)
    graph = graph_of(300, sources, targets)
    parts = split(graph, group_sizes(groups, 80), SMALL, hops=1)
    assert sorted(np.concatenate([part.nodes[part.core] for part in parts])) == list(range(300))
    assert sorted(np.concatenate([part.edges[part.own_edges] for part in parts])) == list(
        range(len(sources))
    )
    for part in parts:
        assert np.array_equal(part.nodes[part.sources], sources[part.edges])
        assert np.array_equal(part.nodes[part.targets], targets[part.edges])


def test_parts_are_new_when_the_mesh_changes():
    weights = weights_of(SMALL)
    parts = PartEncoder(weights)
    groups, sources, targets = spaced_mesh(100, 150, 4)
    graph = graph_of(100, sources, targets)
    for edges in (len(sources), len(sources) - 20):
        graph.update(100, sources[:edges], targets[:edges])
        given = inputs_of(SMALL, 100, edges)
        found = parts.reconstruct(graph, groups, *given)
        whole = Encoder(weights).reconstruct(graph, *given)
        np.testing.assert_allclose(found.nodes, whole.nodes, rtol=1e-4, atol=1e-4)
    parts.close()


def test_namespaces_are_put_together_up_to_a_size():
    groups = np.repeat(np.arange(6), [50, 20, 20, 5, 5, 1]).astype(np.int32)
    sizes = np.bincount(group_sizes(groups, 40))
    assert sizes.tolist() == [50, 40, 11]


def test_scores_of_parts_are_those_of_their_services_and_of_the_calls_to_them():
    parts = np.array([0, 0, 1, 1], np.int32)
    nodes, calls = np.array([1.0, 2.0, 7.0, 3.0], np.float32), np.array([9.0, 0.5], np.float32)
    found = part_scores(parts, 3, nodes, np.array([1, 3], np.int32), calls)
    assert found.tolist() == [9.0, 7.0, 0.0]


def test_the_same_mesh_in_other_parts_is_cut_anew():
    groups, sources, targets = spaced_mesh(60, 90, 3)
    graph, encoder = graph_of(60, sources, targets), PartEncoder(weights_of(SMALL))
    given = inputs_of(SMALL, 60, len(sources))
    encoder.reconstruct(graph, groups, *given)
    encoder.reconstruct(graph, np.roll(groups, 1), *given)
    own = sorted(encoder.parts[0].nodes[encoder.parts[0].core])
    assert own == np.flatnonzero(np.roll(groups, 1) == 0).tolist()
    encoder.close()


@pytest.fixture(scope="module")
def normal():
    rng = np.random.default_rng(0)
    return rng.gamma(2.0, [1.0, 5.0, 0.1, 2.0], (4000, 4))


def test_normal_time_stays_within_bounds_as_often_as_asked(normal):
    model = MetaModel.fit(normal[:2000], percentile=99.0)
    over = np.mean([model.score(row) > 1 for row in normal[2000:]])
    assert 0.002 < over < 0.03


def test_one_part_far_out_and_all_parts_a_little_out_are_both_seen(normal):
    model = MetaModel.fit(normal, percentile=99.5)
    usual = np.median(normal, axis=0)
    assert model.score(usual) < 0.5
    quiet_part_out = usual.copy()
    quiet_part_out[2] = 2.0  # less than the others have all day
    assert model.score(quiet_part_out) > 1
    assert model.score(np.quantile(normal, 0.97, axis=0)) > 1


def test_a_meta_model_survives_its_state_and_refuses_another(normal):
    model = MetaModel.fit(normal[:100])
    meta, arrays = model.export()
    assert MetaModel.restore(meta, arrays).score(normal[5]) == model.score(normal[5])
    with pytest.raises(StateDamaged, match="excess"):
        MetaModel.restore(meta, arrays | {"excess": np.zeros(3)})
    with pytest.raises(MeshError, match="4 parts, not 3"):
        model.score(normal[5, :3])
    with pytest.raises(MeshError, match="20 intervals"):
        MetaModel.fit(normal[:5])
    with pytest.raises(MeshError, match="finite"):
        MetaModel.fit(normal[:50] * np.nan)
