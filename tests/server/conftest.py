"""A graph folder, and servers of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.graph.live.keepers import base_graph
from tests.server.start_rig import FAKE, Started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    base_graph().save(tmp_path / "graph")
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Started]]:
    """Starts servers of the folder's graph."""
    with contextlib.ExitStack() as stack:

        def started(service: str = FAKE, **settings: Any) -> Started:
            server = Started(folder, service, **settings)
            stack.callback(server.close)
            return server

        yield started
