import pytest

from packages.compress.tests.distill.places import build


@pytest.fixture(scope="package")
def places(tmp_path_factory):
    return build(tmp_path_factory.mktemp("distill"))
