import pytest

from tests.engine import zoo


@pytest.fixture(scope="session")
def cases(tmp_path_factory):
    return zoo.build(tmp_path_factory.mktemp("repository"))
