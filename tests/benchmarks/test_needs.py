"""A benchmark says what it lacks before it does anything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import needs

ROOT = Path(__file__).resolve().parents[2]


def test_every_benchmark_of_the_table_is_there():
    folder = ROOT / "benchmarks"
    assert {name for name in needs.NEEDS if not (folder / f"{name}.py").is_file()} == set()


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["python", "-m", "benchmarks.features", "--quick"], "features"),
        (["python", "-P", "-m", "benchmarks.peers.ray_pyg"], "peers.ray_pyg"),
        (["python", "-m", "pytest", "-m", "slow"], ""),
        (["python", "-c", "import benchmarks"], ""),
    ],
)
def test_the_benchmark_is_read_off_the_command(words, name):
    assert needs.benchmark_of(words) == name


def test_what_is_missing_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(needs, "find_spec", lambda name: None if name == "redis" else object())
    monkeypatch.setattr(needs.shutil, "which", lambda name: None if name == "wrk" else f"/usr/bin/{name}")
    assert needs.missing("features").splitlines() == [
        "benchmarks.features needs redis, wrk. To install:",
        "  ./scripts/setup test,lint",
        "  apt-get install wrk    (Debian, Ubuntu)",
    ]
    assert needs.missing("zoo") == ""
    assert needs.missing("peers.ray_pyg") == ""


def test_a_benchmark_ends_at_once_where_a_program_is_missing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tune"],
        cwd=ROOT,
        env=os.environ | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("benchmarks.tune needs wrk. To install:")
