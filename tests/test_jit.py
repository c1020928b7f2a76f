"""Kernels come out of Numba's cache without all that Numba could compile."""

import os
import subprocess
import sys

import pytest

KERNELS = """
import numpy as np
from hopline.jit import njit

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
from hopline.jit import njit

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
