"""Opens and closes the ports of the watch: HTTP, gRPC, and gRPC on a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopline.config.schema import AuthConfig, Config, TlsConfig
from hopline.errors import ConfigError
from hopline.ingress.exposure import is_loopback
from hopline.process.listeners import reserve, tls_context, tls_pair, url_host
from hopline_mesh.out.board import Board
from hopline_mesh.settings import ServeSettings

if TYPE_CHECKING:
    from hopline.ingress.gatekeeper import Gatekeeper
    from hopline.transports.http_endpoint import HttpEndpoint
    from hopline_mesh.out.grpc import MeshGrpc

logger = logging.getLogger(__name__)

#: Bytes of the largest request body: `MAX_EVENTS` events with all columns and the longest names.
_MAX_BODY = 2 * 2**20
_TICK_S = 1.0
#: How long running calls may take at the end, in seconds.
_GRACE_S = 1.0
_MAX_SOCKET_PATH = 107


class Outputs:
    """The ports of a watch.

    Args:
        board: the data that they serve.
        settings: addresses and authentication.

    Attributes:
        http_port, grpc_port: actual ports after the start; None if they are off.
    """

    def __init__(self, board: Board, settings: ServeSettings) -> None:
        self.http_port: int | None = None
        self.grpc_port: int | None = None
        self._board = board
        self._settings = settings
        self._config = _config(settings)
        self._gate: Gatekeeper | None = None
        self._listener: asyncio.Server | None = None
        self._endpoint: HttpEndpoint | None = None
        self._grpc: Any = None
        self._grpc_app: MeshGrpc | None = None
        self._ticking: asyncio.Task[None] | None = None
        #: The socket file that this process created; removed at the end.
        self._socket: Path | None = None

    @property
    def url(self) -> str:
        """URL of the page; "" if HTTP is off."""
        if self.http_port is None:
            return ""
        secure = "s" if self._config.tls.enabled else ""
        return f"http{secure}://{url_host(self._settings.host)}:{self.http_port}"

    async def start(self) -> None:
        """Open all ports.

        Raises:
            ConfigError: a port is in use, the address is not loopback and needs no authentication, or a
                file is invalid.
        """
        settings = self._settings
        check_exposure(settings)
        if self._config.auth.enabled:
            from hopline.ingress.gatekeeper import Gatekeeper

            self._gate = Gatekeeper(self._config)
        try:
            if settings.http_port >= 0:
                await self._open_http()
            if settings.grpc_port >= 0 or settings.socket is not None:
                await self._open_grpc()
        except BaseException:
            await self.stop()
            raise
        self._ticking = asyncio.create_task(self._tick(), name="timer of the ports")

    async def stop(self) -> None:
        """Close all of them."""
        if self._ticking is not None:
            self._ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticking
            self._ticking = None
        if self._listener is not None:
            self._listener.close()
        if self._endpoint is not None:
            self._endpoint.begin_close()
            self._endpoint.abort()
        if self._grpc is not None:
            assert self._grpc_app is not None
            self._grpc_app.draining = True
            await self._grpc.stop(_GRACE_S)
            self._grpc = None
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.unlink()

    async def _open_http(self) -> None:
        from hopline.transports.http_endpoint import HttpEndpoint
        from hopline_mesh.out.http import MeshHttp

        tls = tls_context(self._config.tls)
        bound = reserve(self._settings.host, self._settings.http_port, "http_port")
        app = MeshHttp(self._board, self._gate, open_metrics=self._settings.open_metrics)
        self._endpoint = HttpEndpoint(app, app.refuse, max_body_bytes=_MAX_BODY)
        loop = asyncio.get_running_loop()
        self._endpoint.tick(loop.time())
        self._listener = await loop.create_server(self._endpoint, sock=bound, ssl=tls)
        self.http_port = bound.getsockname()[1]

    async def _open_grpc(self) -> None:
        import grpc

        from hopline_mesh.out.grpc import MeshGrpc

        settings = self._settings
        self._grpc_app = MeshGrpc(self._board, self._gate)
        self._grpc = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _MAX_BODY),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
            ]
        )
        self._grpc.add_generic_rpc_handlers(self._grpc_app.handlers())
        if settings.grpc_port >= 0:
            address = f"{url_host(settings.host)}:{settings.grpc_port}"
            pair = tls_pair(self._config.tls)
            try:
                if pair is None:
                    self.grpc_port = self._grpc.add_insecure_port(address)
                else:
                    self.grpc_port = self._grpc.add_secure_port(
                        address, grpc.ssl_server_credentials([pair])
                    )
            except RuntimeError as error:
                raise ConfigError(f"grpc_port: cannot listen on {address}: {error}") from None
        if settings.socket is not None:
            self._add_socket(settings.socket)
        await self._grpc.start()
        if settings.socket is not None:
            # Access is controlled by the folder and the group of the socket.
            settings.socket.chmod(0o660)

    def _add_socket(self, path: Path) -> None:
        path = path.absolute()
        if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
            raise ConfigError(f"socket: {str(path)!r} is longer than {_MAX_SOCKET_PATH} bytes")
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise ConfigError(f"socket: {str(path)!r} exists and is not a socket")
            if _is_listening(path):
                raise ConfigError(f"socket: {str(path)!r} is in use by another process")
            path.unlink()  # of a watch that died
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._grpc.add_insecure_port(f"unix:{path}")
            self._socket = path
        except (RuntimeError, OSError) as error:
            raise ConfigError(f"socket: cannot listen on {str(path)!r}: {error}") from None

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TICK_S)
            if self._endpoint is not None:
                self._endpoint.tick(loop.time())
            if self._gate is not None:
                self._gate.tick()


def _is_listening(path: Path) -> bool:
    """Whether a process listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def check_exposure(settings: ServeSettings) -> None:
    """Check that anonymous access from other hosts is explicit.

    Raises:
        ConfigError: settings contradict each other, or the address is not loopback and needs no
            authentication.
    """
    keys = settings.clients_file is not None
    if keys and settings.allow_anonymous:
        raise ConfigError("allow_anonymous: contradicts clients_file; set one or the other")
    if (settings.cert_file is None) != (settings.key_file is None):
        raise ConfigError("cert_file: set it together with key_file, or neither")
    if is_loopback(settings.host, "host"):
        return
    if not keys and not settings.allow_anonymous:
        raise ConfigError(
            f"host: {settings.host!r} is reachable from other hosts without authentication; set "
            "clients_file (`hopline auth new-key` creates one), or allow_anonymous = true if the network "
            "keeps strangers out"
        )
    if keys and settings.cert_file is None:
        logger.warning(
            "API keys are sent unencrypted to host %r: set cert_file and key_file, or terminate TLS in a "
            "proxy in front of this watch",
            settings.host,
        )


def _config(settings: ServeSettings) -> Config:
    """Return the settings in the form that the server's parts read."""
    return Config(
        auth=AuthConfig(
            clients_file=settings.clients_file,
            allow_anonymous=settings.allow_anonymous,
            open_metrics=settings.open_metrics,
        ),
        tls=TlsConfig(cert_file=settings.cert_file, key_file=settings.key_file),
    )
