"""What the `kserve` package says of Hopline, in a process of its own.

The package registers messages under the names that Triton's client uses as well; one process cannot hold
both.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.sample(1)
@pytest.mark.parametrize(("cases", "number"), [("client_cases", 12), ("manifest_cases", 7)])
def test_in_a_process_of_its_own(cases: str, number: int) -> None:
    file = Path(__file__).with_name(f"{cases}.py")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{number} passed" in done.stdout
