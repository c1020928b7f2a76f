"""Pipes and devices where files belong are refused: to read one might never end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hopline.engine.precomputed_file import PrecomputedFile
from hopline.errors import ArtifactError, ConfigError, GraphError, PrecomputedFileError
from hopline.features.registry import open_store
from hopline.graph import Graph
from hopline.ingress.clients_file import read_clients
from hopline.models.local_repository import LocalRepository
from tests.graphs import power_law_graph


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


ENDLESS = pytest.mark.parametrize("put", [pipe, zeros])
REFUSED = "is a pipe, a socket or a device, not a file"


@ENDLESS
@pytest.mark.parametrize("name", ["graph.json", "nodes/node/features.npy", "edges/further.npy"])
def test_in_a_graph(tmp_path: Path, name: str, put: Callable[[Path], None]) -> None:
    folder = power_law_graph(20, 40).save(tmp_path / "graph").path
    assert folder is not None
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    put(folder / name)
    with pytest.raises(GraphError, match=REFUSED):
        Graph.open(folder)


@ENDLESS
@pytest.mark.parametrize("name", ["model.json", "stage.onnx", "further"])
def test_in_a_model(tmp_path: Path, name: str, put: Callable[[Path], None]) -> None:
    folder = tmp_path / "risk" / "1"
    folder.mkdir(parents=True)
    (folder / "pipeline.toml").write_text("")  # makes it a version also without a model.json
    put(folder / name)
    with pytest.raises(ArtifactError, match=REFUSED):
        LocalRepository(tmp_path).fetch("risk", "1")


@ENDLESS
def test_as_a_file_of_precomputed_answers(tmp_path: Path, put: Callable[[Path], None]) -> None:
    put(tmp_path / "answers.precomputed")
    with pytest.raises(PrecomputedFileError, match=REFUSED):
        PrecomputedFile.open(tmp_path / "answers.precomputed")


@ENDLESS
def test_as_a_clients_file(tmp_path: Path, put: Callable[[Path], None]) -> None:
    put(tmp_path / "clients.toml")
    with pytest.raises(ConfigError, match=REFUSED):
        read_clients(tmp_path / "clients.toml")


@ENDLESS
@pytest.mark.parametrize("name", ["other.npy", "account.json"])
def test_in_a_folder_of_features(tmp_path: Path, name: str, put: Callable[[Path], None]) -> None:
    np.save(tmp_path / "account.npy", np.zeros((3, 2), np.float32))
    put(tmp_path / name)
    with pytest.raises(ConfigError, match=REFUSED):
        asyncio.run(open_store(f"memory://{tmp_path}").open())
