import importlib.util
import sys

import pytest
import torch

from tests.docs.player import ROOT, play
from tests.packaging.conftest import _one_thread_and_one_seed  # noqa: F401


@pytest.fixture(scope="session")
def check_docs():
    """scripts/check_docs.py as a module."""
    spec = importlib.util.spec_from_file_location("check_docs", ROOT / "scripts" / "check_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_docs"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def quickstart(check_docs, tmp_path_factory):
    """The folder that somebody has who followed the quickstart."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("quickstart")
    play(check_docs, "docs/quickstart.md", folder)
    return folder
