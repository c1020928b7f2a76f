import os
import shutil

import pytest

from hopline.service import Service
from tests import loaded_units_rig as rig
from tests.shared_memory import create_shared


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    return rig.repository(tmp_path_factory.mktemp("lifecycle"))


@pytest.fixture
def root(source, tmp_path):
    """A repository of its own for each test, with version 1 only; the others lie beside it."""
    shutil.copytree(source, tmp_path / "root")
    for version in ("2", "3"):
        (tmp_path / "root" / "models" / "sage" / version).rename(tmp_path / version)
    return tmp_path / "root"


@pytest.fixture
async def workers(root, tmp_path):
    """Two workers of one server, in one process."""
    (tmp_path / "shared").mkdir()
    fd = create_shared()
    shared = rig.config(root, **{"server.workers": 2}).replace(
        worker__metrics_dir=str(tmp_path / "shared"), worker__state_cache_fd=fd, worker__count=2
    )
    both = [Service(shared.replace(worker__index=i)) for i in range(2)]
    for worker in both:
        await worker.start()
    yield both
    for worker in both:
        await rig.stop(worker)
    os.close(fd)
