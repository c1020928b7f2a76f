"""Shared fixtures. Threads are pinned: two test cores, and bit-equality is for one thread count."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Generator

import pytest
from _pytest.unraisableexception import collect_unraisable

from tests import warm_start
from tests.trust import keep_contexts
from tests.turns import Turns

pytest_plugins = ["tests.workers", "tests.thorough"]

os.environ.setdefault("OMP_NUM_THREADS", "1")


@functools.cache
def turns() -> Turns:
    """Turns of this process: workers are forked, and would share the locks of files that are open then."""
    return Turns()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Give a quiet test the machine for itself; quiet tests that follow one another share a turn."""
    quiet = item.get_closest_marker("quiet") is not None
    turns().begin(quiet=quiet)
    try:
        return (yield)
    finally:
        if not quiet or nextitem is None or nextitem.get_closest_marker("quiet") is None:
            turns().end()


@pytest.fixture(autouse=True, scope="session")
def _models_are_packaged_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Processes of one run share the models of their fixtures."""
    if "torch" in sys.modules:
        from tests import packaged
        from tests.workers import shared_folder

        packaged.folder = shared_folder(tmp_path_factory) / "packaged"


@pytest.fixture(autouse=True, scope="session")
def _warm_process_ends() -> Generator[None, None, None]:
    """End what servers of tests were forked from: each process of tests has its own."""
    yield
    warm_start.end()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import all tests without the garbage collector: it would find no garbage, again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Draw the weights of models that a file of tests makes when it is imported from one seed."""
    if isinstance(collector, pytest.Module) and "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep what was imported from the garbage collector: it looks at a million objects again and again.

    What libraries would make again for each call is kept too. torch's exporter, which imports 600 modules
    when it is first called, is called before the processes fork that share the tests.
    """
    keep_contexts(pytest.MonkeyPatch())
    if "torch" in sys.modules and session.config.getoption("processes"):
        from tests.packaged import export_once

        export_once()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Collect what a file of tests leaves, in its last test, and keep the rest from the collector.

    The rest is what was imported meanwhile, such as torch's exporter. A socket that nobody closed fails
    that test: pytest, which has looked before, would fail the first one of another file.
    """
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
        collect_unraisable(item.config)
