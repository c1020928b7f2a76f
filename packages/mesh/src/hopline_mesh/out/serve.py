"""Opens and closes the ports of the watch: HTTP, gRPC, and gRPC on a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hopline.config.schema import AuthConfig, Config, TlsConfig
from hopline.errors import ConfigError
from hopline.ingress.certificates import TlsFiles
from hopline.ingress.exposure import is_loopback
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.process.listeners import remove_dead_socket, reserve, url_host
from hopline_mesh.out.board import Board
from hopline_mesh.out.error_tables import own_text
from hopline_mesh.out.http import MeshHttp
from hopline_mesh.settings import ServeSettings
from turnserve.http1.endpoint import HttpEndpoint
from turnserve.tls_handshakes import TlsHandshakes

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
        page_url: URL of the page for others, if the settings have one.

    Attributes:
        http_port, grpc_port: actual ports after the start; None if they are off.
    """

    def __init__(self, board: Board, settings: ServeSettings, page_url: str = "") -> None:
        self._page_url = page_url
        #: that the page listens on; 0.0.0.0 and :: are all interfaces, and lead nowhere
        self._address: ipaddress.IPv4Address | ipaddress.IPv6Address | None = None
        self.http_port: int | None = None
        self.grpc_port: int | None = None
        self._board = board
        self._settings = settings
        self._config = _config(settings)
        self._gate: Gatekeeper | None = None
        #: called every second
        self._ticks: list[Callable[[], object]] = []
        self._open = contextlib.AsyncExitStack()

    @property
    def url(self) -> str:
        """URL of the page on this machine; "" if HTTP is off."""
        if self._address is None:
            return ""
        host = self._settings.host
        if self._address.is_unspecified:
            host = "127.0.0.1" if self._address.version == 4 else "::1"
        return self._url_of(host)

    @property
    def link(self) -> str:
        """URL of the page for links in alerts; "" if none is known that leads to it."""
        if self._address is None or self._page_url:
            return self._page_url
        return "" if self._address.is_unspecified else self.url

    def _url_of(self, host: str) -> str:
        return f"http{'s' if self._config.tls.enabled else ''}://{url_host(host)}:{self.http_port}"

    async def start(self) -> None:
        """Open all ports.

        Raises:
            ConfigError: a port is in use, the address is not loopback and needs no authentication, or a
                file is invalid.
        """
        settings = self._settings
        check_exposure(settings)
        try:
            if self._config.auth.enabled:
                self._gate = Gatekeeper(self._config)
                self._ticks.append(self._gate.tick)
            if settings.http_port >= 0:
                await self._open_http()
            if settings.grpc_port >= 0 or settings.socket is not None:
                await self._open_grpc()
        except BaseException as error:
            await self.stop()
            if isinstance(error, ConfigError):
                raise ConfigError(own_text(str(error))) from None
            raise
        self._open.callback(asyncio.create_task(self._tick(), name="timer of the ports").cancel)

    async def stop(self) -> None:
        """Close all of them."""
        await self._open.aclose()

    async def _open_http(self) -> None:
        files = TlsFiles(self._config.tls)
        tls = files.contexts("http/1.1")
        bound = reserve(self._settings.host, self._settings.http_port, "http_port")
        name, self.http_port = bound.getsockname()[:2]
        self._address = ipaddress.ip_address(name.partition("%")[0])
        app = MeshHttp(
            self._board,
            self._gate,
            open_metrics=self._settings.open_metrics,
            urls=(self._page_url, self._url_of(self._settings.host)),
        )
        endpoint = HttpEndpoint(app, app.refuse, max_body_bytes=_MAX_BODY)
        loop = asyncio.get_running_loop()
        endpoint.tick(loop.time())
        self._ticks.append(lambda: endpoint.tick(loop.time()))
        self._open.callback(endpoint.abort)
        self._open.callback(endpoint.begin_close)
        protocol: Any = endpoint
        if tls is not None:
            protocol = TlsHandshakes(endpoint, tls, endpoint.timeouts.read_s)
            self._ticks.append(files.tick)
        self._open.callback((await loop.create_server(protocol, sock=bound)).close)

    async def _open_grpc(self) -> None:
        import grpc  # large: trainings, which import this module too, do not need it

        from hopline_mesh.out.grpc import MeshGrpc

        settings = self._settings
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _MAX_BODY),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
            ]
        )
        server.add_generic_rpc_handlers(MeshGrpc(self._board, self._gate).handlers())
        if settings.grpc_port >= 0:
            address = f"{url_host(settings.host)}:{settings.grpc_port}"
            key, cert = self._config.tls.key_file, self._config.tls.cert_file
            try:
                if key is None or cert is None:
                    self.grpc_port = server.add_insecure_port(address)
                else:
                    pair = key.read_bytes(), cert.read_bytes()
                    self.grpc_port = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
            except OSError as error:
                raise ConfigError(f"cert_file, key_file: cannot be read: {error}") from None
            except RuntimeError as error:
                raise ConfigError(f"grpc_port: cannot listen on {address}: {error}") from None
        if settings.socket is not None:
            self._add_socket(server, settings.socket.absolute())
        self._open.push_async_callback(server.stop, _GRACE_S)
        await server.start()
        if settings.socket is not None:
            # Access is controlled by the folder and the group of the socket.
            settings.socket.chmod(0o660)

    def _add_socket(self, server: Any, path: Path) -> None:
        if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
            raise ConfigError(f"socket: {str(path)!r} is longer than {_MAX_SOCKET_PATH} bytes")
        remove_dead_socket(path, "socket", "process")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            server.add_insecure_port(f"unix:{path}")
        except (RuntimeError, OSError) as error:
            raise ConfigError(f"socket: cannot listen on {str(path)!r}: {error}") from None
        self._open.callback(_remove, path)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            for tick in self._ticks:
                tick()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # a stop must end
        path.unlink()


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
