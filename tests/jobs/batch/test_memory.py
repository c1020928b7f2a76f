"""A run stays inside --memory, and says so where it cannot."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from hopline.errors import BatchError
from hopline.graph import Graph
from hopline.jobs.batch.work import Reads, pace
from hopline.packaging import package
from tests.engine.zoo import SAGEConv
from tests.graphs import power_law_edges

MIB = 1 << 20


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = SAGEConv(512, 256)
        self.b = SAGEConv(256, 4)

    def forward(self, x, edge_index):
        return self.b(self.a(x, edge_index).relu(), edge_index)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Features of 195 MiB, hidden states of 98 MiB."""
    folder = tmp_path_factory.mktemp("wide")
    rng = np.random.default_rng(0)
    features = rng.standard_normal((100_000, 512), np.float32)
    graph = Graph.from_edges(power_law_edges(100_000, 300_000), features).save(folder / "graph")
    torch.manual_seed(0)
    package(Wide().eval(), graph, folder / "r", name="wide", fanouts=[3, 3], task="multiclass")
    return folder


def run(folder, out, *words):
    command = [sys.executable, "-m", "hopline.cli", "batch", "--model", "wide", "--to", f"npy:{out}"]
    command += ["--repository", str(folder / "r"), "--graph", str(folder / "graph"), "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, check=False, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_peak_memory_stays_below_the_limit_and_the_bytes_are_the_same(wide, tmp_path):
    free = run(wide, tmp_path / "free", "--outputs", "logits")
    tight = run(wide, tmp_path / "tight", "--outputs", "logits", "--memory", "320MiB", "--threads", "1")
    assert free["peak_rss_bytes"] > 350 * MIB  # the features and more
    assert tight["peak_rss_bytes"] <= 320 * MIB  # VmHWM of the process
    assert tight["levels"][0]["compact_edges"] > 0
    assert (np.load(tmp_path / "free/logits.npy") == np.load(tmp_path / "tight/logits.npy")).all()


def reads(**changes):
    usual = {"what": "level 1 of 'node'", "base_bytes": 1 << 40, "row_bytes": 512, "out_bytes": 512}
    return Reads(**(usual | {"fanout": 11, "usual": 8.0, "edge_rows": False} | changes))


def test_without_a_limit_rows_are_read_where_they_lie():
    assert pace(reads(), 0, 4, 0).compact_edges == 0


def test_rows_that_fit_are_read_where_they_lie():
    assert pace(reads(base_bytes=100 * MIB), 1024 * MIB, 2, 200 * MIB).compact_edges == 0
    assert pace(reads(base_bytes=700 * MIB), 1024 * MIB, 2, 200 * MIB).compact_edges > 0


def test_too_little_memory_is_an_error_that_names_enough():
    with pytest.raises(
        BatchError, match=r"whose largest neighbourhood is 10,000,001 rows; it needs \d+MiB"
    ):
        pace(reads(fanout=10_000_001), 256 * MIB, 2, 128 * MIB)
    try:
        pace(reads(fanout=100_000), 256 * MIB, 2, 128 * MIB)
    except BatchError as error:
        enough = int(str(error).partition("it needs ")[2].partition("MiB")[0])
        assert pace(reads(fanout=100_000), enough * MIB, 2, 128 * MIB).compact_edges >= 100_000
