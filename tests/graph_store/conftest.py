import atexit
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.engine import zoo
from tests.features.redis_servers import redis_cluster, redis_process


@pytest.fixture(scope="session")
def cases():
    root = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return zoo.build(root)


@pytest.fixture(scope="session")
def redis_nodes():
    """The three masters of a cluster that tests share; they leave them running."""
    with redis_cluster() as servers:
        yield servers


@pytest.fixture
def own_nodes():
    """The masters of a cluster that a test may kill."""
    with redis_cluster() as servers:
        yield servers


@pytest.fixture(scope="session")
def redis_alone():
    with redis_process() as server:
        yield server
