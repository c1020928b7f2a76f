"""Hopline serves graph neural networks: the server owns the graph, the client sends node ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopline.errors import HoplineError

if TYPE_CHECKING:
    from hopline.client import Admin, AsyncClient, Client
    from hopline.graph import Graph
    from hopline.packaging import package, package_tabular

__version__ = "0.1.0"

__all__ = [
    "Admin", "AsyncClient", "Client", "Graph", "HoplineError", "__version__", "package", "package_tabular",
]  # fmt: skip

# Imported on first use: `import hopline` must stay free of side effects and cost.
_LAZY = {
    "Admin": "hopline.client",
    "AsyncClient": "hopline.client",
    "Client": "hopline.client",
    "Graph": "hopline.graph",
    "package": "hopline.packaging",
    "package_tabular": "hopline.packaging",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'hopline' has no attribute {name!r}")
