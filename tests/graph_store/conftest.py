import atexit
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.engine import zoo


@pytest.fixture(scope="session")
def cases():
    root = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return zoo.build(root)
