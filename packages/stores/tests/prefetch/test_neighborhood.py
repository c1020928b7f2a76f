"""The prefetcher's plan is the worker's: it fetches the rows that a request will read, and no others."""

import numpy as np
import pytest

from hopline.artifact import read_spec
from hopline.engine.model import Model
from hopline.sampling.keyed import NO_CUT
from hopline_stores.prefetch.neighborhood import Neighborhood
from tests.engine import zoo
from tests.engine.test_source import Rows


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return zoo.build(tmp_path_factory.mktemp("repository"))


class Near:
    """What `Neighborhood` needs of `L1Rows`: which rows are near."""

    key = ""

    def __init__(self, num_nodes, dim):
        self.here = np.zeros(num_nodes, bool)
        self._dim = dim

    def probe(self, ids):
        return np.flatnonzero(~self.here[ids])

    def mean(self):
        return np.zeros(self._dim, np.float32)


@pytest.mark.parametrize("name", ["sage", "plain", "gcn", "gat", "mixed", "hetero", "link"])
def test_what_is_lacking_is_what_the_model_reads(cases, name):
    case = cases[name]
    spec = read_spec(case.folder)
    near = {kind: Near(*nodes.features.shape) for kind, nodes in case.graph.nodes.items()}
    rows = {kind: Rows(nodes.features) for kind, nodes in case.graph.nodes.items()}
    for kind in rows:
        rows[kind].near[:] = False
    neighborhood = Neighborhood(case.folder, spec, case.graph, near)
    model = Model(case.folder, spec, case.graph, sources=rows)
    (seed_type, *_) = neighborhood.seed_types
    rng = np.random.default_rng(3)
    for size in (1, 7):
        seeds = {seed_type: rng.permutation(case.graph.nodes[seed_type].num_nodes)[:size]}
        expected = model.absent(seeds, NO_CUT)
        found = neighborhood.lacking(seeds, NO_CUT)
        assert {kind: ids.tolist() for kind, ids in found.items()} == {
            kind: ids.tolist() for kind, ids in expected.items()
        }
    # and without those that are near
    kind, ids = next(iter(found.items()))
    near[kind].here[ids[::2]] = True
    assert neighborhood.lacking(seeds, NO_CUT).get(kind, ids[:0]).tolist() == ids[1::2].tolist()
