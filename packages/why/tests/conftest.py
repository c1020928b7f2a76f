import warnings

with warnings.catch_warnings():
    # PyG 2.8 scripts some of its classes when imported, which torch 2.13 has deprecated.
    warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
    import torch_geometric.nn  # noqa: F401
