"""Processes that share the tests of a run: forks of the one that has collected them.

Collecting imports torch, Feast and MLflow, which takes longer than most files of tests. It is done once,
and all share the memory of what it made. A worker gets file after file, in order. It sends the reports of
each test to its parent, which prints and counts them as if it had run the test. A worker that dies fails
the test that it ran, and another one goes on behind that test.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import random
import signal
import sys
import types
import warnings
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from _pytest.config import create_terminal_writer
from _pytest.faulthandler import fault_handler_stderr_fd_key

#: Seconds in which workers end their fixtures when a run is interrupted.
_GRACE_S = 30.0
#: pytest-timeout's limit is a signal, which Python handles when its main thread is not within C. Before a
#: test, another one may use up its limit.
_HANG_S = 600.0


def pytest_addoption(parser: pytest.Parser) -> None:
    # `addoption` keeps short names to pytest itself.
    parser.getgroup("workers")._addoption(
        *("-n", "--processes"),
        type=int,
        default=0,
        help="processes that share the tests; 0: this one runs them",
    )
    parser.addoption(
        "--hang-s", type=float, default=_HANG_S, help="seconds until a worker ends that no signal ends"
    )
    parser.addoption("--after", type=Path, help="pipe that ends before tests run; its text is printed")


def pytest_configure(config: pytest.Config) -> None:
    if (count := config.getoption("processes")) and not config.getoption("usepdb"):
        config.pluginmanager.register(Workers(count))


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """The folder of the run; that of each worker is in it."""
    folder = factory.getbasetemp()
    return folder.parent if multiprocessing.parent_process() else folder


class Workers:
    """Has the collected tests run by some workers."""

    def __init__(self, count: int) -> None:
        self._count = count

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        config = session.config
        if config.getoption("collectonly") or session.testsfailed:
            return None  # pytest's own loop prints the tests, or what went wrong
        if after := config.getoption("after"):
            print(after.read_text(), end="", flush=True)
        print(f"{len(session.items):,} tests", flush=True)
        files: dict[str, list[int]] = {}
        for index, item in enumerate(session.items):
            files.setdefault(item.nodeid.partition("::")[0], []).append(index)
        if (terminal := config.pluginmanager.getplugin("terminalreporter")) is not None:
            terminal.showfspath = False  # tests of several files end in turns
        config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        run = _Run(session, deque(files.values()))
        try:
            run.go(self._count)
        except BaseException:
            run.interrupt()
            raise
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True


class _Worker:
    """A worker, as its parent sees it.

    Attributes:
        given: indices of tests that it got and did not begin.
        running: index of the test that it runs; None between tests.
        ended: readable once the process has ended: what it started may hold its end of the connection.
    """

    def __init__(
        self, session: pytest.Session, name: str, given: list[int], others: list[Connection]
    ) -> None:
        self.given = deque(given)
        self.running: int | None = None
        self.connection, end = multiprocessing.Pipe()
        arguments = (session, name, given, end, [*others, self.connection])
        self.process = multiprocessing.get_context("fork").Process(target=_work, args=arguments)
        self.process.start()
        end.close()
        assert self.process.pid is not None
        self.pid = self.process.pid
        self.ended = os.pidfd_open(self.pid)

    def messages(self) -> Iterator[Any]:
        """What it has sent so far."""
        try:
            while self.connection.poll():
                yield self.connection.recv()
        except (EOFError, OSError):
            wait([self.ended])  # it is ending: it closes nothing before

    def send(self, file: list[int]) -> None:
        """Give it a file of tests; none if it is to end."""
        self.given.extend(file)
        with contextlib.suppress(OSError):  # it has died, which is seen in its turn
            self.connection.send(file)

    def close(self) -> int:
        """Exit code of the process, which has ended."""
        self.process.join()
        code = self.process.exitcode or 0
        self.process.close()
        self.connection.close()
        os.close(self.ended)
        return code


class _Run:
    """The workers of a run, and the files of tests that none of them has."""

    def __init__(self, session: pytest.Session, files: deque[list[int]]) -> None:
        self._session, self._files = session, files
        self._workers: list[_Worker] = []
        self._num_started = 0

    def go(self, count: int) -> None:
        """Until all tests have run, or the session wants no more."""
        for _ in range(min(count, len(self._files))):
            self._start([])
        while self._workers:
            found = wait([end for each in self._workers for end in (each.connection, each.ended)])
            for worker in list(self._workers):
                if worker.connection in found or worker.ended in found:
                    for message in worker.messages():
                        self._take(worker, message)
                if worker.ended in found:
                    self._finish(worker)

    def interrupt(self) -> None:
        """End all workers; they have some time for the ends of their fixtures."""
        for worker in self._workers:
            os.kill(worker.pid, signal.SIGINT)
        for worker in self._workers:
            worker.process.join(_GRACE_S)
            worker.process.kill()
            worker.close()

    def _start(self, given: list[int]) -> None:
        others = [each.connection for each in self._workers]
        self._workers.append(_Worker(self._session, f"w{self._num_started}", given, others))
        self._num_started += 1

    @property
    def _is_over(self) -> bool:
        return bool(self._session.shouldfail or self._session.shouldstop)

    def _take(self, worker: _Worker, message: Any) -> None:
        """Take the number of a test that begins, its reports, a warning, or None, which wants a file."""
        if message is None:
            worker.send(self._files.popleft() if self._files and not self._is_over else [])
        elif isinstance(message, int):
            worker.running = message
            worker.given.remove(message)
        elif isinstance(message, dict):
            text = warnings.WarningMessage(**message.pop("warning_message"))
            recorded = self._session.config.hook.pytest_warning_recorded
            recorded.call_historic(kwargs={"warning_message": text, **message})
        else:
            restored = self._session.config.hook.pytest_report_from_serializable
            self._log(worker, [restored(config=self._session.config, data=data) for data in message])

    def _finish(self, worker: _Worker) -> None:
        """See off a worker that has ended; one that died in a test has another one after it."""
        self._workers.remove(worker)
        given, running = list(worker.given), worker.running
        code = worker.close()
        if running is not None:
            item = self._session.items[running]
            text = f"The process of this test ended, with exit code {code}."
            self._log(worker, [pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")])
            if (given or self._files) and not self._is_over:
                self._start(given)
        elif code:
            raise RuntimeError(f"a worker ended with exit code {code} between tests")

    def _log(self, worker: _Worker, reports: list[pytest.TestReport]) -> None:
        """Report a test that has ended as if it had run here."""
        assert worker.running is not None
        item, worker.running = self._session.items[worker.running], None
        hook = self._session.config.hook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        if self._is_over:
            for each in self._workers:
                each.send([])
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


class _Reports:
    """Takes the place of pytest's terminal in a worker: keeps the reports of a test, and prints nothing.

    Attributes:
        found: reports since they were last sent.
    """

    def __init__(self, config: pytest.Config, parent: Connection) -> None:
        self.found: list[dict[str, Any]] = []
        self._config, self._parent = config, parent
        # Where pytest-timeout writes the stacks of threads, under the name that `pytest.Config` looks for.
        self._tw = create_terminal_writer(config, sys.stderr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self.found.append(data)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        text = {name: getattr(warning_message, name) for name in ("category", "filename", "lineno")}
        text["message"] = str(warning_message.message)
        self._parent.send({"warning_message": text, "when": when, "nodeid": nodeid, "location": location})


def _work(
    session: pytest.Session, name: str, given: list[int], parent: Connection, unused: list[Connection]
) -> None:
    """Run tests as the parent gives them.

    Args:
        given: indices of the first ones.
        unused: the parent's ends of connections.
    """
    config = session.config
    for each in unused:
        each.close()
    # Files of captured output that this process shares with no other.
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    stderr = config.stash.get(fault_handler_stderr_fd_key, 2)  # which is not captured
    config.pluginmanager.unregister(name="terminalprogress-plugin")
    config.pluginmanager.unregister(name="terminalreporter")
    reports = _Reports(config, parent)
    config.pluginmanager.register(reports, "terminalreporter")
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.getbasetemp() / name
    factory._basetemp.mkdir(mode=0o700)
    random.seed()  # else all workers draw the same names
    # Processes that multiprocessing starts import the main module: pytest's, which they do not need.
    sys.modules["__main__"] = types.ModuleType("__main__")

    indices = _indices(given, parent)
    index = next(indices, None)
    try:
        # A file's last test keeps fixtures that the next file uses too: that is asked for before it ends.
        while index is not None:
            parent.send(index)
            following = next(indices, None)
            after = None if following is None else session.items[following]
            faulthandler.dump_traceback_later(config.getoption("hang_s"), exit=True, file=stderr)
            config.hook.pytest_runtest_protocol(item=session.items[index], nextitem=after)
            parent.send(reports.found)
            reports.found = []
            # What comes without a request is the wish to end; and so is the parent's end.
            if session.shouldfail or session.shouldstop or parent.poll():
                break
            index = following
    except KeyboardInterrupt:
        pass
    finally:
        session._setupstate.teardown_exact(None)
        faulthandler.cancel_dump_traceback_later()


def _indices(given: list[int], parent: Connection) -> Iterator[int]:
    yield from given
    while True:
        parent.send(None)
        if not (file := parent.recv()):
            return
        yield from file
