"""Kernels come out of Numba's cache without all that Numba could compile."""

import os
import subprocess
import sys

import pytest

KERNELS = """
import numpy as np
from hopline.kernels.jit import njit

@njit(cache=True)
def inner(x):
    return np.sqrt(x) + 1.0

@njit(nogil=True, cache=True)
def total(values):
    made = np.empty(values.shape[0])
    found = 0.0
    for i in range(values.shape[0]):
        made[i] = inner(values[i]) + np.log(values[i])
        found += made[i]
    return found
"""

CHECK = """
import sys
import numpy as np
import kernels
from hopline.kernels.jit import njit

values = np.arange(1.0, 100.0)
value = float(kernels.total(values))
print(repr(value), sum(kernels.total.stats.cache_hits.values()), "scipy.linalg" in sys.modules)

@njit
def later(values):  # has to be compiled, and calls what was loaded
    return kernels.total(values) * 2.0

assert later(values) == 2.0 * kernels.total(values)
assert kernels.total(values.astype(np.float32)) > 0  # arguments of a type that is not in the cache
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def run():
        done = subprocess.run(
            [sys.executable, "-c", CHECK], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        value, hits, scipy = done.stdout.split()
        return value, int(hits), scipy == "True"

    return run


def test_a_loaded_kernel_answers_as_the_compiled_one_and_needs_no_scipy(run):
    compiled, hits, scipy = run()
    assert (hits, scipy) == (0, True)
    run()  # Numba keeps what the second of two first processes compiles
    assert run() == (compiled, 1, False)


def test_a_changed_source_is_compiled_anew(run, tmp_path):
    first, *_ = run()
    (tmp_path / "kernels.py").write_text(KERNELS.replace("+ 1.0", "+ 2.0"))
    second, hits, _ = run()
    assert second != first
    assert hits == 0


OUTER = """
from hopline.kernels.jit import njit
from bundle import (
    numbers,
)

@njit(cache=True)
def outer(x):
    return numbers.inner(x) + 1.0
"""

NUMBERS = """
from hopline.kernels.jit import njit
from bundle.deep.constants import ADDED

@njit
def inner(x):
    return x + ADDED
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("numbers.py", NUMBERS.replace("x + ADDED", "x - ADDED")), -1.0),
        (("deep/constants.py", "ADDED = 5.0"), 6.0),
        (("other.py", "UNUSED = 1"), None),
    ],
)
def test_a_kernel_is_compiled_anew_when_a_module_that_it_imports_has_changed(tmp_path, change, expected):
    """An upgrade leaves the cache of the version before it where it was."""
    for name, text in {
        "__init__.py": "",
        "outer.py": OUTER,
        "numbers.py": NUMBERS,
        "deep/__init__.py": "",
        "deep/constants.py": "ADDED = 2.0",
        "other.py": "",
    }.items():
        (tmp_path / "bundle" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "bundle" / name).write_text(text)
    check = "from bundle.outer import outer; print(outer(0.0), sum(outer.stats.cache_hits.values()))"
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def run():
        command = [sys.executable, "-c", check]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout.split()

    assert run() == ["3.0", "0"]
    assert run() == ["3.0", "1"]
    name, text = change
    (tmp_path / "bundle" / name).write_text(text)
    assert run() == (["3.0", "1"] if expected is None else [str(expected), "0"])


def test_the_log_says_once_that_kernels_are_compiled(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    code = """
import logging
logging.basicConfig(level="INFO", format="%(name)s %(message)s")
import numpy as np
import kernels
kernels.total(np.arange(1.0, 9.0))
"""

    def said():
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        ).stderr

    first = said()
    assert first.count("compiling kernels for this processor") == 1
    assert "hopline warm" in first
    assert "compiling" not in said()
