"""Starts Python processes of tests as forks of one that has imported what a server imports.

    process of tests ── words, environment, descriptors ──► warm process ── fork ──► the process
                     ◄── pid ──────────────────────────────             ◄── ends ───
                     ◄── exit code, through a pipe ────────

A fresh server imports for most of a second before it reads its settings, and loads machine code as long.
Children that a fork starts by `Child.start` are forks of it. Tests of the start use fresh processes.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import ctypes
import functools
import gc
import importlib
import importlib.metadata
import json
import logging
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from hopline.isolated.fork_server import ForkServer, stop_threads

ROOT = Path(__file__).resolve().parents[1]
#: What a server has imported when it is ready, and what starts no thread.
IMPORTED = (
    *("hopline.kernels.jit", "hopline.serve", "hopline.server", "hopline.service", "hopline.live.process"),
    *("hopline.transports.http", "hopline.transports.grpc", "hopline.transports.preflight"),
    *("hopline.observe.logs", "hopline.config.reader", "hopline.cli", "turnserve.http1.endpoint"),
    *("turnserve.grpc.endpoint", "uvloop", "numba", "tests.fake_service"),
)
#: Kernels that a server loads before it is ready: module -> names.
KERNELS = {
    "hopline.graph.integrity": ("_scan_lists", "_scan_edges", "_scan_weights", "_first_wrong_slot"),
    "hopline.graph.hash_table": ("bytes_find",),
    "hopline.engine.outputs": ("softmax", "sigmoid"),
    "hopline.engine.kernels": ("gather", "gather_reduce", "intern"),
    "hopline.engine.state_cache": ("_write",),
    "hopline.engine.fused_plan": ("plan_levels", "descend", "climb"),
    "hopline.engine.overlay_states": ("sample_lists",),
    "hopline.process.populate": ("_populate",),
    "hopline.transports.json_scan": ("_count", "_repeated"),
    "hopline.transports.proto_scan": ("_count",),
}
#: A process whose environment begins so is another one after these are changed.
_READ_AT_START = ("LD_", "MALLOC_", "NUMBA_", "OMP_", "OPENBLAS_", "PYTHON", "HOPLINE_CPU")
#: Forks write their own words over it.
_ENTRY = "from tests.warm_start import main; main()" + " " * 500


class WarmProcess(subprocess.Popen[str]):
    """As `Popen([sys.executable, *words], stdout=PIPE, stderr=PIPE, text=True)`.

    Args:
        words: begin with "-c" or "-m".
        environment: of the process.
        stderr: a file in place of a pipe.
    """

    stdin = None
    args: Any

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], stderr: IO[Any] | None = None
    ) -> None:
        self.args, self.returncode, self.text_mode = [sys.executable, *words], None, True
        self._sigint_wait_secs, self._input, self._communication_started = 0.25, None, False
        (out, out_end), (self._ended, ended_end) = os.pipe(), os.pipe()
        err, err_end = os.pipe() if stderr is None else (-1, os.dup(stderr.fileno()))
        order = {"words": list(words), "environment": dict(environment), "folder": os.getcwd()}
        try:
            self.pid = _warm().fork(order, (out_end, err_end, ended_end))
        finally:
            for end in (out_end, err_end, ended_end):
                os.close(end)
        self.stdout, self.stderr = open(out), open(err) if stderr is None else None  # noqa: SIM115
        self._child_created = True

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        return self._code_after(0.0)

    def _wait(self, timeout: float | None) -> int:
        code = self._code_after(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def _code_after(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            text = os.read(self._ended, 16)
            os.close(self._ended)
            self.returncode = int(text or -signal.SIGKILL)  # the warm process itself has ended
        return self.returncode


class _Warm:
    """The warm process, as a process of tests sees it."""

    def __init__(self) -> None:
        self._end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-Xfaulthandler", "-c", _ENTRY],
            stdin=theirs, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        theirs.close()
        self.environment = fixed(os.environ)

    def fork(self, order: Mapping[str, Any], files: Sequence[int]) -> int:
        """Returns the pid."""
        with self._lock:
            socket.send_fds(self._end, [json.dumps(order).encode()], files)
            return int(self._end.recv(64))

    def close(self) -> None:
        """End it; processes that it started go on."""
        self._end.close()
        self._process.wait()


@functools.cache
def _warm() -> _Warm:
    return _Warm()


def end() -> None:
    """End the warm process, if there is one."""
    if _warm.cache_info().currsize:
        _warm().close()
        _warm.cache_clear()


def fixed(environment: Mapping[str, str]) -> dict[str, str]:
    """Of an environment, what is read when modules are imported."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_START) and name != "PYTHONPATH"
    }


def start(
    words: Sequence[str], environment: Mapping[str, str] = os.environ, stderr: IO[Any] | None = None
) -> subprocess.Popen[str]:
    """A process that prints into pipes: a fork, unless its environment differs in what imports read.

    Args: see `WarmProcess`.
    """
    if fixed(environment) == _warm().environment:
        return WarmProcess(words, environment, stderr)
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *words], stdout=pipe, stderr=stderr or pipe, text=True, env=environment
    )


# In the warm process


def main() -> None:
    """Entry of the warm process."""
    control = socket.socket(fileno=os.dup(0))
    for name in IMPORTED:
        importlib.import_module(name)
    _load_kernels()
    # Each server reads the names of all installed packages, of which the environment of tests has hundreds.
    importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)
    importlib.import_module("hopline.transports.http_operations").all_operations()
    stop_threads()
    gc.collect()
    gc.freeze()
    _Forks(control).serve()


def _load_kernels() -> None:
    """Load the machine code that the cache has; what it lacks, the process compiles that calls it."""
    for module, names in KERNELS.items():
        for name in names:
            kernel = getattr(importlib.import_module(module), name)
            for arguments, *_ in kernel._cache.own._cache_file._load_index():
                if "Narrow" not in str(arguments):
                    kernel.compile(arguments)


class _Forks(ForkServer):
    PACKET_BYTES = 1 << 20

    def __init__(self, control: socket.socket) -> None:
        super().__init__(control)
        #: pid -> pipe for its exit code
        self._ends: dict[int, int] = {}

    def begin(self, order: dict[str, Any], out: int, err: int, ended: int) -> int:
        """Fork; see `ForkServer.begin`."""
        pid = self._fork_as(order, out, err)
        self._ends[pid] = os.dup(ended)
        self._living[pidfd := os.pidfd_open(pid)] = pid
        self._control.send(str(pid).encode())
        return pidfd

    def report(self, message: dict[str, Any], *_: int) -> None:
        """Write an exit code into its pipe."""
        ended = self._ends.pop(message["pid"])
        with contextlib.suppress(BrokenPipeError):
            os.write(ended, str(message["code"]).encode())
        os.close(ended)

    def _fork_as(self, order: dict[str, Any], out: int, err: int) -> int:
        if pid := os.fork():
            return pid
        try:
            nothing = os.open(os.devnull, os.O_RDONLY)
            for file, place in ((nothing, 0), (out, 1), (err, 2)):
                os.dup2(file, place)
            _close_all_but(())
            os.environ.clear()
            os.environ.update(order["environment"])
            os.chdir(order["folder"])
            subprocess.Popen = _Forking  # type: ignore[misc]
            run(order["words"])
        finally:
            os._exit(70)


class _Forking(subprocess.Popen[Any]):
    """In place of Popen in a fork of the warm process: what `Child.start` starts is a fork of it."""

    def __init__(self, args: Any, *more: Any, **options: Any) -> None:
        if tuple(args[:2]) == (sys.executable, "-PXfaulthandler") and not more and _may_fork():
            options["preexec_fn"] = functools.partial(_as_child, args[2:], options.get("pass_fds", ()))
        super().__init__(args, *more, **options)


def _may_fork() -> bool:
    """True if other threads do nothing but wait for children: in a fork, locks of others stay locked."""
    waiting = [each for each in threading.enumerate() if each.name.startswith("asyncio-waitpid-")]
    return len(os.listdir("/proc/self/task")) == 1 + len(waiting)


def _as_child(words: Sequence[str], files: Collection[int]) -> NoReturn:
    """Be a child of a server; called where a fresh process would call exec."""
    # Objects of the parent end with the process: before, they would close files that got their numbers.
    gc.freeze()
    gc.enable()
    _close_all_but(files)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as an interpreter does that begins
        signal.signal(number, signal.SIG_IGN)
    atexit._clear()
    atexit.register(logging.shutdown)
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # such as the parent's folders
    asyncio._set_running_loop(None)
    asyncio.set_event_loop(None)
    contextvars.Context().run(run, words)
    raise AssertionError


def _close_all_but(files: Collection[int]) -> None:
    for each in map(int, os.listdir("/proc/self/fd")):
        if each > 2 and each not in files:
            with contextlib.suppress(OSError):  # of the list itself
                os.close(each)


def _show(words: Sequence[str]) -> None:
    """Have the system name the process by these words, as far as those of the warm process are long."""
    numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = map(int, numbers[45:47])
    text = "\0".join([sys.executable, *words]).encode()[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def run(words: Sequence[str]) -> NoReturn:
    """Be an interpreter with these words, from its first line to its exit."""
    code = 1
    try:
        _show(words)
        kind, what, *rest = words
        sys.argv = [kind, *rest]
        if kind == "-m":
            sys.modules.pop(what, None)
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(what, "<string>", "exec"), vars(main))
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
