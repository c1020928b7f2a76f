"""The floor of HTTP: Hopline's own connection in front of a handler that always says the same.

    python -m benchmarks.batch_phases.echo BODY_BYTES

Prints the port that it listens on, then serves until it is stopped.
"""

from __future__ import annotations

import asyncio
import sys

from hopline.config.schema import ServerConfig
from turnserve.http1.endpoint import HttpEndpoint
from turnserve.http1.messages import Request, Response

#: As Hopline's own default is.
SPIN_S = ServerConfig().spin_us * 1e-6


async def serve(num_bytes: int) -> None:
    """Answer with so many bytes, for ever."""
    body = b"0" * num_bytes
    headers = b"x-request-id: 0123456789ab-0\r\n"

    def handler(request: Request) -> Response:
        return Response(body, headers=headers)

    def refusal(status: int, text: str) -> Response:
        return Response(text.encode(), status)

    endpoint = HttpEndpoint(handler, refusal, max_body_bytes=1 << 20, spin_s=SPIN_S)
    server = await asyncio.get_running_loop().create_server(endpoint, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1])))
