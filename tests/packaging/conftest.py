import warnings

import pytest
import torch

with warnings.catch_warnings():
    # PyG 2.8 scripts some of its classes when imported, which torch 2.13 has deprecated.
    warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
    import torch_geometric.nn

# PyG writes a class's `propagate` for its first instance in a process. After one whose aggregation it does
# not fuse, such as LSTM, every later instance fails on sparse matrices.
for _conv in (torch_geometric.nn.SAGEConv, torch_geometric.nn.GraphConv):
    _conv(1, 1)


@pytest.fixture(autouse=True)
def _one_thread_and_one_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)
