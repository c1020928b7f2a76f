import pytest

from tests.jobs.distill.places import build


@pytest.fixture(scope="package")
def places(tmp_path_factory):
    return build(tmp_path_factory.mktemp("distill"))
