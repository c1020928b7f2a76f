"""The check of a change leaves out what it says, and a sample has all values of parameters."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.thorough import sample

ROOT = Path(__file__).resolve().parents[1]
FILE = """
import pytest
from tests.thorough import thorough

@pytest.mark.sample(3)
@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", range(2))
def test_of_two_parameters(a, b):
    print("number", thorough(2, 30))

@pytest.mark.release
def test_of_a_release():
    print("number", thorough(2, 30))

@pytest.mark.sample(2)
@pytest.mark.parametrize("a", [pytest.param(0, marks=pytest.mark.release), 1])
def test_with_a_parameter_of_a_release(a):
    print("number", thorough(2, 30))

@pytest.mark.sample(1)
class TestOfAClass:
    def test_without_parameters(self):
        print("number", thorough(2, 30))

    @pytest.mark.parametrize("a", range(3))
    def test_with_parameters(self, a):
        print("number", thorough(2, 30))
"""


def cases_of(sizes: list[int]) -> list[dict[str, int]]:
    places = itertools.product(*map(range, sizes))
    return [{f"p{axis}": value for axis, value in enumerate(case)} for case in places]


@given(st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(1, 20))
def test_a_sample_has_all_values_of_all_parameters_once_it_can(sizes: list[int], count: int) -> None:
    cases = cases_of(sizes)
    kept = sample(cases, count)
    assert kept == sample(cases, count)
    assert len(kept) == min(count, len(cases))
    for axis, size in enumerate(sizes):
        assert len({cases[place][f"p{axis}"] for place in kept}) == min(size, count)


@given(st.integers(2, 300), st.data())
def test_a_sample_of_a_list_is_spread_over_it(length: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, length))
    kept = sorted(sample(cases_of([length]), count))
    gaps = [later - earlier for earlier, later in itertools.pairwise([*kept, kept[0] + length])]
    assert max(gaps) < 6 * length / count


def test_what_is_for_a_release_is_left_out_unless_all_or_its_file_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(FILE)

    def numbers(*words: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-s", "-p", "tests.thorough", "-p", "no:schemathesis"]
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", "--strict-markers", *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return re.findall(r"number (\d+)", done.stdout)

    assert numbers("tests") == ["2"] * 6
    assert numbers("tests/test_it.py") == ["2"] * 13
    assert numbers("tests", "--all") == ["30"] * 13
