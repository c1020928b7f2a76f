"""PyG, imported where its own use of what PyTorch has deprecated counts for nothing."""

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
    import torch_geometric.nn  # noqa: F401
