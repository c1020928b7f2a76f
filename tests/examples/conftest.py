import functools
import warnings
from collections.abc import Iterator

import pytest
import torch

with warnings.catch_warnings():
    # PyG 2.8 scripts some of its classes when imported, which torch 2.13 has deprecated.
    warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
    import torch_geometric.nn  # noqa: F401


@pytest.fixture(autouse=True, scope="session")
def _operators_parsed_once() -> Iterator[None]:
    """The exporter parses the source of its 500 operators at every call, which is most of its time."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib))
        )
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
