"""Ports: found free, held, shared between workers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from hopline.errors import ConfigError

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
#: Connections of a listening socket that are accepted in one turn of the loop.
_ACCEPTED_A_TURN = 16


def reserve(host: str, port: int, setting: str) -> socket.socket:
    """A bound socket that other sockets with SO_REUSEPORT may join.

    Bound but not listening it takes no connections: a supervisor holds the port with it while its
    workers listen.

    Args:
        host: name or address.
        port: 0 picks a free one.
        setting: path of the setting, for errors.

    Raises:
        ConfigError: the port is taken or the address is not this machine's.
    """
    family, _, _, _, address = _resolve(host, port)
    # SO_REUSEPORT would let us silently share a stranger's port, so bind without it first.
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(probe, address, host, port, setting)
    held = socket.socket(family, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    _bind(held, address, host, port, setting)
    return held


def join(host: str, port: int, setting: str) -> socket.socket:
    """A bound socket on a port that the supervisor reserved."""
    family, _, _, _, address = _resolve(host, port)
    shared = socket.socket(family, socket.SOCK_STREAM)
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    _bind(shared, address, host, port, setting)
    return shared


async def listen_at(path: Path, talk: Talk, setting: str, listener: str) -> asyncio.Server:
    """Listen on a Unix socket that this user alone may connect to; one that a dead process left is removed.

    Args:
        talk: takes a connection.
        setting: where the path comes from, for errors.
        listener: what listens there, for errors.

    Raises:
        ConfigError: the path cannot be a socket, or another process listens there.
    """
    remove_dead_socket(path, setting, listener)
    try:
        # The mode of a socket is the umask's: no other user may connect to it, even for a moment.
        before = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(talk, path)
        finally:
            os.umask(before)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{setting}: cannot listen at {path}: {error}") from None


def remove_dead_socket(path: Path, setting: str, listener: str) -> None:
    """Remove a Unix socket that a dead process left; nothing else is removed.

    Args:
        setting: where the path comes from, for errors.
        listener: what may listen there, for errors.

    Raises:
        ConfigError: the path is no socket, or another process listens there.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"{setting}: {path} is there and is no socket; name another path")
    except OSError:
        return
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(1)
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass
    raise ConfigError(f"{setting}: another {listener} listens at {path}")


class Listener:
    """A listening socket whose connections are accepted; see `listen`."""

    def __init__(self, servers: Sequence[asyncio.Server]) -> None:
        self._servers = servers

    def close(self) -> None:
        """Accept no further connections."""
        for server in self._servers:
            server.close()


async def listen(
    protocol: Callable[[], asyncio.BaseProtocol], bound: socket.socket, backlog: int
) -> Listener:
    """Accept connections, several in each turn of the loop.

    uvloop accepts one connection of a socket in each turn, in which it also answers requests of those that
    are open: a probe would wait for the requests of all that came before it. It accepts one for each
    descriptor, so the socket gets several.

    Args:
        bound: listens already, or is bound.
    """
    loop = asyncio.get_running_loop()
    bounds = [bound, *(bound.dup() for _ in range(_ACCEPTED_A_TURN - 1))]
    return Listener([await loop.create_server(protocol, sock=each, backlog=backlog) for each in bounds])


def hold_new_connections(listening: socket.socket) -> None:
    """Let a listening socket finish the connections it has, and begin no further ones.

    Closing it immediately would reset connections that wait to be accepted, perhaps with a request sent.
    From here on the kernel drops SYNs for it that routers may have forwarded (IP_MINTTL; RFC 5082), which
    are those of all ordinary clients: they start at 64 or 128. A client's connect goes unanswered, is sent
    again after a second, and then meets another listener of the port or an honest refusal. (A filter of
    the socket would do the same, but not every kernel permits one to a process without privileges.)
    Elsewhere than on Linux this does nothing.
    """
    _set_min_ttl(listening, 255)


def read_new_connection(transport: asyncio.BaseTransport) -> None:
    """Undo `hold_new_connections` for a connection that began before and was made after."""
    _set_min_ttl(transport.get_extra_info("socket"), 0)


def _set_min_ttl(of: Any, least: int) -> None:
    if sys.platform == "linux":
        # IP_MINTTL and IPV6_MINHOPCOUNT, which the socket module has no names for. Packets of IPv4 that
        # come to a socket of IPv6 have the first.
        for level, option in (socket.IPPROTO_IP, 21), (socket.IPPROTO_IPV6, 73):
            with contextlib.suppress(OSError):
                of.setsockopt(level, option, least)


def num_unaccepted(listening: socket.socket) -> int:
    """Connections of a listening socket that wait to be accepted; 0 where the system does not say."""
    if sys.platform != "linux":
        return 0
    # struct tcp_info (linux/tcp.h): tcpi_unacked, which is the queue of a socket that listens.
    return int.from_bytes(listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)[24:], sys.byteorder)


def url_host(host: str) -> str:
    """A host as URLs and gRPC targets have it: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def _resolve(host: str, port: int) -> tuple[int, int, int, str, object]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise ConfigError(f"server.host: {host!r} is not an address: {error.strerror}") from None


def _bind(bound: socket.socket, address: object, host: str, port: int, setting: str) -> None:
    try:
        bound.bind(address)  # type: ignore[arg-type]
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"{setting}: port {port} on {host} is in use by another process") from None
        if error.errno == errno.EACCES:
            raise ConfigError(f"{setting}: no permission for port {port}; use one above 1023") from None
        raise ConfigError(f"{setting}: cannot listen on {host}:{port}: {error.strerror}") from None
