"""One small packaged model for all tests of functions."""

import pytest


@pytest.fixture(scope="session")
def packaged(tmp_path_factory):
    """A folder with `models/sage/1` and its graph: string ids n0 to n119, times, weights."""
    import torch

    from tests.engine import zoo

    root = tmp_path_factory.mktemp("packaged")
    torch.manual_seed(7)
    graph = zoo.homogeneous(1).save(root / "graph")
    module = zoo.Sage().eval()
    zoo.package(
        module, graph, root / "models", name="sage", fanouts=[4, 3, 5], task="multiclass", check_nodes=20
    )
    return root
