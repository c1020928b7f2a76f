"""The server's gRPC endpoint in the loop of a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from hopline.transports.grpc import GrpcApp
from turnserve.grpc.endpoint import GrpcEndpoint
from turnserve.turns import Turns


def endpoint_of(app: GrpcApp, **settings: Any) -> GrpcEndpoint:
    """Its clock stands still, so that a turn has no end, unless a test brings other turns."""
    limits = {"max_message_bytes": 1 << 20, "connection_age_s": 60.0, "read_timeout_s": 30.0}
    limits["turns"] = Turns(lambda: 0.0)  # type: ignore[assignment]
    return GrpcEndpoint(app.methods(), app.fail, **(limits | settings))


@contextlib.asynccontextmanager
async def grpc_server(app: GrpcApp, **settings: Any) -> AsyncIterator[str]:
    """host:port, while it is open."""
    endpoint = endpoint_of(app, **settings)
    server = await asyncio.get_running_loop().create_server(endpoint, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        endpoint.abort()
