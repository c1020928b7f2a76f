"""Shared fixtures. Threads are pinned: two test cores, and bit-equality is for one thread count."""

import gc
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")

# What an example takes is the machine's affair: no test is a timed one.
settings.register_profile("hopline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("hopline")


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Draw the weights of models that a file of tests makes when it is imported from one seed."""
    if isinstance(collector, pytest.Module) and "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def pytest_collection_finish() -> None:
    """Keep what was imported from the garbage collector: it looks at a million objects again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Collect what a file of tests leaves, in its last test, and keep the rest from the collector.

    The rest is what was imported meanwhile, such as torch's exporter.
    """
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
