"""The block under which the example's server runs."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT
    )


def test_blocked_packages_cannot_be_imported() -> None:
    for name in ("torch", "torch.nn", "torch_geometric"):
        done = python(f"from examples.torch_free import block; block(); import {name}")
        assert done.returncode == 1
        assert "is blocked in this process" in done.stderr


def test_block_that_comes_too_late_is_noticed() -> None:
    done = python("import sklearn; from examples.torch_free import block; block()")
    assert done.returncode == 1
    assert "sklearn could be imported in spite of the block" in done.stderr
