"""Processes of models find the scripted model."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _processes_import_tests(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
