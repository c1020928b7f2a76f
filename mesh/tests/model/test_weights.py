"""Weights survive a file exactly, and nothing else is taken for weights."""

import numpy as np
import pytest

from hopline.errors import ConfigError
from hopline_mesh.errors import StateDamaged
from hopline_mesh.model.shape import ModelShape
from hopline_mesh.model.weights import Weights

from .meshes import ODD, SMALL, USUAL, weights_of


@pytest.mark.parametrize("shape", [SMALL, USUAL, ODD])
def test_a_file_gives_back_the_same_weights(tmp_path, shape):
    weights = weights_of(shape)
    weights.save(tmp_path / "model")
    again = Weights.load(tmp_path / "model")
    assert again.shape == shape
    assert all(np.array_equal(again[name], array) for name, array in weights.arrays.items())
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_torn_or_changed_file_is_refused(tmp_path):
    content = weights_of(SMALL).to_bytes()
    for bad in (b"", content[:-1], content[: len(content) // 2], content[:500] + b"!" + content[501:]):
        with pytest.raises(StateDamaged, match="torn or changed"):
            Weights.from_bytes(bad)


def test_a_file_of_another_version_is_refused():
    import hashlib

    body = weights_of(SMALL).to_bytes()[:-32].replace(b"mesh-model-1", b"mesh-model-9")
    with pytest.raises(StateDamaged, match="format"):
        Weights.from_bytes(body + hashlib.sha256(body).digest())


def test_arrays_that_do_not_fit_the_shape_are_refused_by_name():
    arrays = weights_of(SMALL).arrays
    with pytest.raises(StateDamaged, match=r"out\.bias"):
        Weights(SMALL, {name: array for name, array in arrays.items() if name != "out.bias"})
    with pytest.raises(StateDamaged, match=r"out\.bias is \(3,\)"):
        Weights(SMALL, arrays | {"out.bias": np.zeros(3, np.float32)})
    with pytest.raises(StateDamaged, match="not finite"):
        Weights(SMALL, arrays | {"out.bias": np.full(12, np.nan, np.float32)})


def test_the_same_seed_gives_the_same_weights():
    assert Weights.initial(SMALL, 3).to_bytes() == Weights.initial(SMALL, 3).to_bytes()
    assert Weights.initial(SMALL, 3).to_bytes() != Weights.initial(SMALL, 4).to_bytes()


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"hidden": 100}, "multiple of 16"),
        ({"hidden": 48, "heads": 1}, "multiple of 32"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"d_edge": -1}, "d_edge must not be negative"),
        ({"directions": ("callers",)}, "2 layers"),
        ({"directions": ("callers", "friends")}, "friends"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, said):
    with pytest.raises(ConfigError, match=said):
        ModelShape(
            **({"d_in": 4, "d_temporal": 1, "d_edge": 1, "n_node_targets": 1, "n_edge_targets": 1} | sizes)
        )
