"""Kernels that come compiled for a CPU level are loaded on every CPU that has it; nothing is written."""

import os
import subprocess
import sys

import pytest

from hopline.errors import ConfigError
from hopline.kernels import cpu_level
from tests.containers import run_confined
from tests.kernels.test_jit import KERNELS

RUN = """
import sys
from pathlib import Path
from hopline.kernels import cpu_level
cpu_level.FOLDER = Path(sys.argv[1])
if sys.argv[2] != "-":
    cpu_level.compile_for(sys.argv[2])
import logging
logging.basicConfig(level="INFO", format="%(message)s")
import numpy as np
import kernels
value = float(kernels.total(np.arange(1.0, 100.0)))
print(repr(value), sum(kernels.total.stats.cache_hits.values()), cpu_level.target() or "own")
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "kernels.py").write_text(KERNELS)

    def run(level="-", cache="cache", **environment):
        folders = {"PYTHONPATH": str(tmp_path / "code"), "NUMBA_CACHE_DIR": str(tmp_path / cache)}
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(tmp_path / "compiled"), level],
            env=os.environ | folders | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        value, hits, target = done.stdout.split()
        return value, int(hits), target, done.stderr

    return run


def own_levels():
    """Levels that this machine's CPU has, the best first."""
    return [level for level, needs in cpu_level.LEVELS.items() if needs <= cpu_level._host()]


def test_kernels_of_the_best_level_are_loaded_and_nothing_is_written(run, tmp_path):
    best, *_ = levels = own_levels()
    values = {run(level, "build")[0] for level in levels}
    assert len(values) == 1
    assert not (tmp_path / "build").exists()
    value, hits, target, said = run()
    assert (value, hits, target) == (values.pop(), 1, best)
    assert not (tmp_path / "cache").exists()
    assert "compiling" not in said


def test_what_did_not_come_compiled_goes_into_the_usual_cache(run, tmp_path):
    (tmp_path / "compiled" / own_levels()[0]).mkdir(parents=True)
    assert run()[1] == 0
    assert run()[1] == 1
    assert list((tmp_path / "compiled").rglob("*.nbi")) == []


@pytest.mark.release
def test_a_changed_source_is_not_served_by_kernels_that_came_compiled(run, tmp_path):
    first, *_ = run(own_levels()[0])
    (tmp_path / "code" / "kernels.py").write_text(KERNELS.replace("+ 1.0", "+ 2.0"))
    assert run()[0] != first


def test_copies_of_a_source_with_other_times_are_the_same_source(run, tmp_path):
    """Layers of images keep whole seconds of a file's time."""
    run(own_levels()[0])
    os.utime(tmp_path / "code" / "kernels.py", (1, 1))
    assert run()[1] == 1


def test_a_start_without_any_folder_to_write_works_and_says_what_is_missing(run, tmp_path):
    (tmp_path / "code" / "__pycache__").write_text("not a folder")
    nowhere = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/cache"}
    value, hits, _, said = run(cache="code/kernels.py/x", **nowhere)
    assert value == run()[0]
    assert hits == 0
    assert said.count("compiled kernels cannot be cached") == 1
    assert "NUMBA_CACHE_DIR" in said


@pytest.mark.release
def test_a_cache_that_can_only_be_read_is_read(run, tmp_path):
    """Such as NUMBA_CACHE_DIR in an image, filled by `hopline warm`."""
    run()
    command = [sys.executable, "-c", RUN, tmp_path / "compiled", "-"]
    folders = {"PYTHONPATH": f"{tmp_path / 'code'}", "NUMBA_CACHE_DIR": f"{tmp_path / 'cache'}"}
    done = run_confined(command, environment=folders)
    assert done.stdout.split()[1:] == ["1", "own"], done.stderr
    assert "compil" not in done.stderr


@pytest.mark.parametrize(
    ("has", "folders", "target"),
    [
        (cpu_level.LEVELS.get("x86-64-v4", ()), ["x86-64-v4", "x86-64-v3"], "x86-64-v4"),
        (cpu_level.LEVELS.get("x86-64-v3", ()), ["x86-64-v4", "x86-64-v3"], "x86-64-v3"),
        (cpu_level.LEVELS.get("x86-64-v2", ()), ["x86-64-v4", "x86-64-v3"], ""),
        (cpu_level.LEVELS.get("x86-64-v4", ()), [], ""),
    ],
)
def test_the_level_is_the_best_that_the_cpu_has_and_that_was_compiled(
    has, folders, target, monkeypatch, tmp_path
):
    if "x86-64-v2" not in cpu_level.LEVELS:
        has, folders, target = frozenset(), ["generic"], "generic"
    for name in folders:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(cpu_level, "FOLDER", tmp_path)
    monkeypatch.setattr(cpu_level, "_host", lambda: frozenset(has) | {"sse", "avx512bf16"})
    cpu_level.target.cache_clear()
    try:
        assert cpu_level.target() == target
        assert cpu_level.features() == (cpu_level.LEVELS[target] if target else cpu_level._host())
    finally:
        cpu_level.target.cache_clear()


def test_an_unknown_level_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match=rf"'pentium' is not a CPU level.*{next(iter(cpu_level.LEVELS))}"):
        cpu_level.check_level("pentium")
