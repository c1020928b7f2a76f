"""Model processes are forked from this one: it has imported what all of them need, and loaded nothing.

    server ── key; orders, socket, stop pipe ──► fork server ── fork ──► a model's process
           ◄── key, pid; pidfd ─────────────────             ◄── ends ──
           ◄── pid, code ───────────────────

A fresh start takes half a second of a processor, nearly all of it imports; a fork takes some milliseconds
(log/). Only a process with one thread may fork and continue: what other threads hold locked stays
locked in the copy for ever. So ONNX Runtime, which starts a thread when it is imported, is left to the
copies, and should there be a second thread all the same, processes are started by exec.

Messages are JSON in packets of a Unix socket, with descriptors. The end of the socket is the end of
the fork server, and with it of all its processes, just as the death of their server would be.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import socket
import sys
import traceback
from typing import Any

from hopline.isolated import main as process_main
from hopline.process.child import command
from hopline.process.parent import die_with_parent, read_orders

#: What models of any kind need and what starts no thread.
_IMPORTED = (
    *("uvloop", "numba", "hopline.observe.logs", "hopline.graph.residency", "hopline.sampling.keyed"),
    *("hopline.engine.kernels", "hopline.models.repository", "hopline.models.local_repository"),
    *("hopline.answering.unit", "hopline.answering.queued"),
    *("hopline.answering.hashes", "hopline.engine.outputs"),
)
#: Exit code of a process that failed before it was one of a model.
_NEVER_STARTED = 70


def main() -> None:
    """Entry of the process."""
    die_with_parent()
    control = socket.socket(fileno=json.loads(read_orders())["control"])
    yielding = process_main.yield_while_loading()
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # no collection writes to pages that are shared with copies
    if yielding:
        process_main.end_yielding()
    stop_threads()
    ForkServer(control).serve()


def stop_threads() -> None:
    """Fork a copy that exits immediately: before a fork OpenBLAS ends its threads, and starts them when it
    is asked to compute.
    """
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)


class ForkServer:
    """Obeys the orders that come through a socket, and reaps what it has begun; see the module."""

    PACKET_BYTES = 4096

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        #: pidfd -> pid of those that live
        self._living: dict[int, int] = {}

    def serve(self) -> None:
        """Until the server closes its end."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while True:
            for file, _ in poll.poll():
                if file in self._living:
                    poll.unregister(file)
                    self._reap(file)
                    continue
                packet, files, _, _ = socket.recv_fds(self._control, self.PACKET_BYTES, 3)
                if not packet:
                    return
                pidfd = self.begin(json.loads(packet), *files)
                for each in files:
                    os.close(each)
                if pidfd >= 0:
                    poll.register(pidfd, select.POLLIN)

    def begin(self, order: dict[str, Any], orders: int, wire: int, stop_pipe: int) -> int:
        """Begin a process; returns its pidfd, or -1 where there is none."""
        key = order["key"]
        try:
            start = self._fork if num_threads() == 1 else _spawn
            pid = start(orders, wire, stop_pipe)
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            self.report({"key": key, "why": os.strerror(error.errno or 0)})
            return -1
        self._living[pidfd] = pid
        self.report({"key": key, "pid": pid}, pidfd)
        return pidfd

    def _fork(self, orders: int, wire: int, stop_pipe: int) -> int:
        fork_server = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            self._control.close()
            for pidfd in self._living:
                os.close(pidfd)
            os.setsid()
            os.dup2(stop_pipe, 0)
            os.dup2(2, 1)
            os.close(stop_pipe)
            die_with_parent()
            if os.getppid() == fork_server:
                process_main.run(_orders_in(orders), wire)
        except BaseException:  # the boundary: nothing of the fork server's own may run in the copy
            traceback.print_exc()
        os._exit(_NEVER_STARTED)

    def _reap(self, pidfd: int) -> None:
        """Report how a process ended."""
        pid = self._living.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self.report({"pid": pid, "code": os.waitstatus_to_exitcode(status)})

    def report(self, message: dict[str, Any], *files: int) -> None:
        """Send the server a message."""
        # One that has gone is read as the end, in the next round.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._control, [json.dumps(message).encode()], files)


def num_threads() -> int:
    """Of this process."""
    return len(os.listdir("/proc/self/task"))


def _orders_in(file: int) -> dict[str, Any]:
    """Orders that a server wrote for a process; closes the file."""
    with open(file, "rb") as orders:
        found: dict[str, Any] = json.load(orders)
    return found


def _spawn(orders: int, wire: int, stop_pipe: int) -> int:
    """Start a process from nothing."""
    for each in (orders, wire):
        os.set_inheritable(each, True)
    return os.posix_spawn(
        sys.executable,
        [*command("hopline.isolated.fork_server:start"), str(orders), str(wire)],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, stop_pipe, 0), (os.POSIX_SPAWN_DUP2, 2, 1)],
        setsid=True,
    )


def start() -> None:
    """Entry of a process that was not forked."""
    die_with_parent()
    process_main.run(_orders_in(int(sys.argv[1])), int(sys.argv[2]))
