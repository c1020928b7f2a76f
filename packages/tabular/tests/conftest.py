import warnings

import pytest

with warnings.catch_warnings():
    # PyG 2.8 scripts some of its classes when imported, which torch 2.13 has deprecated.
    warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
    import torch_geometric.nn  # noqa: F401

from packages.tabular.tests.fraud_world import World


@pytest.fixture(scope="session")
def packaged_world(tmp_path_factory):
    """A packaged model, and the user's cache of its features."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        return World(tmp_path_factory.mktemp("world")), cache


@pytest.fixture(scope="module")
def world(packaged_world):
    """The packaged model of the session; no test changes its files."""
    world, cache = packaged_world
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        yield world
