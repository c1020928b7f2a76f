"""Starts model processes for a server: keeps a fork server for that, and starts another if it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import socket
from collections.abc import Mapping
from typing import Any

from hopline.errors import ModelNotReady
from hopline.process.child import Child
from hopline.process.cpu_affinity import leave_cpu

log = logging.getLogger(__name__)

_ENTRY = "hopline.isolated.fork_server:main"
_PACKET_BYTES = 4096
#: For a released fork server to exit; between tries to write to a busy one.
_END_S, _BUSY_S = 5.0, 0.005
#: A fork server without processes lives for this time: memory in exchange for a faster next start.
_IDLE_S = 60.0


class ProcessEnded(ModelNotReady):
    """A process ended before its model was ready, and gave no reason: killed, or with the fork server."""


class StartedChild:
    """A process that was begun.

    Attributes:
        pid: its id.
        code: exit code, or minus the signal that ended it; None while it lives.
        stop_pipe: pipe whose end makes it exit; -1 where it was closed.
    """

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.code: int | None = None
        self.stop_pipe = -1
        self._pidfd = pidfd
        self._ended = asyncio.Event()

    def kill(self) -> None:
        """Kill it immediately."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def stop(self) -> None:
        """Order it to finish and to end."""
        if self.stop_pipe >= 0:
            os.close(self.stop_pipe)
            self.stop_pipe = -1

    async def wait(self) -> int:
        """Until it has ended; returns `code`."""
        await self._ended.wait()
        self.stop()
        assert self.code is not None
        return self.code

    def reap(self, code: int) -> None:
        """It has ended."""
        self.code = code
        os.close(self._pidfd)
        self._ended.set()


class ProcessStarter:
    """See the module. Used from one event loop; nothing is started before the first process is wanted."""

    def __init__(self) -> None:
        self._fork_server: Child | None = None
        self._control: socket.socket | None = None
        self._keys = itertools.count()
        self._expected: dict[int, asyncio.Future[StartedChild]] = {}
        self._living: dict[int, StartedChild] = {}
        self._starting = asyncio.Lock()
        self._rest: asyncio.TimerHandle | None = None
        self._leaving: set[asyncio.Task[int]] = set()

    @property
    def pid(self) -> int | None:
        """Of the fork server; None while there is none."""
        return None if self._fork_server is None else self._fork_server.pid

    async def begin(self, orders: Mapping[str, Any], wire: socket.socket) -> StartedChild:
        """Begin a process.

        Args:
            orders: as `main` reads them; values that JSON has.
            wire: its end of the socket to the server; the caller closes it.

        Raises:
            ModelNotReady: it could not be begun. ProcessEnded: the fork server has ended.
        """
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        async with self._starting:
            if self._control is None:
                await self._start()
        leave_cpu()  # it begins with a burst of work
        with contextlib.ExitStack() as files:
            theirs, stop_pipe = os.pipe()
            files.callback(os.close, theirs)
            stop_pipes = files.enter_context(contextlib.ExitStack())
            stop_pipes.callback(
                os.close, stop_pipe
            )  # where it fails; one that is begun all the same then ends
            sent = os.memfd_create("orders")
            files.callback(os.close, sent)
            os.write(sent, json.dumps(orders).encode())
            os.lseek(sent, 0, os.SEEK_SET)
            child = await self._request([sent, wire.fileno(), theirs])
            stop_pipes.pop_all()
        child.stop_pipe = stop_pipe
        return child

    async def close(self) -> None:
        """Release the fork server; started processes have ended, or end now."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        self._lose("the server is ending")
        await asyncio.gather(*self._leaving)

    async def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            with theirs:
                self._fork_server = await Child.start(
                    _ENTRY,
                    {"control": theirs.fileno()},
                    name="the process that starts those of models",
                    pass_fds=(theirs.fileno(),),
                    says_ready=False,
                    stdout=2,  # a server's own stdout says where it is, and nothing else
                )
        except BaseException:
            ours.close()
            raise
        self._control = ours
        asyncio.get_running_loop().add_reader(ours, self._on_packet)

    async def _request(self, files: list[int]) -> StartedChild:
        """Request a process from the fork server."""
        key = next(self._keys)
        expected: asyncio.Future[StartedChild] = asyncio.get_running_loop().create_future()
        self._expected[key] = expected
        try:
            await self._send(json.dumps({"key": key}).encode(), files)
            return await expected
        finally:
            del self._expected[key]

    async def _send(self, packet: bytes, files: list[int]) -> None:
        while True:
            if self._control is None:
                raise ProcessEnded("the process that starts those of models has ended")
            try:
                socket.send_fds(self._control, [packet], files)
                return
            except BlockingIOError:
                await asyncio.sleep(_BUSY_S)
            except (BrokenPipeError, ConnectionResetError):
                self._lose("the process that starts those of models has ended")

    def _on_packet(self) -> None:
        assert self._control is not None
        try:
            packet, files, _, _ = socket.recv_fds(self._control, _PACKET_BYTES, 1)
        except BlockingIOError:
            return
        except ConnectionResetError:
            packet, files = b"", []
        if not packet:
            log.error("the process that starts those of models has ended, and they with it")
            self._lose("the process that starts those of models has ended")
            return
        message = json.loads(packet)
        if "key" not in message:
            self._reap(message["pid"], message["code"])
            return
        expected = self._expected.get(message["key"])
        if "why" in message:
            if expected is not None and not expected.done():
                expected.set_exception(ModelNotReady(f"a process cannot be started: {message['why']}"))
            return
        # Known from now on, since the packet that tells its end may be the next one.
        child = self._living[message["pid"]] = StartedChild(message["pid"], files[0])
        if expected is not None and not expected.done():
            expected.set_result(child)

    def _reap(self, pid: int, code: int) -> None:
        child = self._living.pop(pid, None)
        if child is not None:
            child.reap(code)
        if not self._living and not self._expected and self._rest is None:
            self._rest = asyncio.get_running_loop().call_later(_IDLE_S, self._retire)

    def _retire(self) -> None:
        """Release the memory: no process was started for long."""
        self._rest = None
        if not self._living and not self._expected:
            self._lose("")

    def _lose(self, why: str) -> None:
        """The fork server is gone or released, and the kernel has killed its processes."""
        control, self._control = self._control, None
        fork_server, self._fork_server = self._fork_server, None
        if control is not None:
            asyncio.get_running_loop().remove_reader(control)
            control.close()
        if fork_server is not None:
            leaving = asyncio.ensure_future(fork_server.end(_END_S))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        living, self._living = self._living, {}
        for child in living.values():
            child.kill()
            child.reap(-signal.SIGKILL)
        for expected in self._expected.values():
            if not expected.done():
                expected.set_exception(ProcessEnded(why))
