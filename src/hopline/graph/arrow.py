"""Access to pyarrow, an optional dependency: `hopline[parquet]`."""

from __future__ import annotations

import importlib
from typing import Any

from hopline.errors import GraphError


def arrow(module: str) -> Any:
    """Import a module of pyarrow. Raises: GraphError: it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise GraphError("reading tables needs pyarrow: pip install 'hopline[parquet]'") from None
