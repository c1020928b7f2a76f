"""A server of HTTP/1.1, HTTP/2 and gRPC on asyncio, in which every connection has its turn.

    http1.endpoint.HttpEndpoint     a handler gets a whole request, and answers now, later, or in pieces
    grpc.endpoint.GrpcEndpoint      methods by path; messages are bytes
    tls_handshakes.TlsHandshakes    either of them over TLS
    peers, compression, budget      client certificates, bounded decompression, memory of all requests

Both are factories of protocols for `loop.create_server`. The application calls `tick` once a second. A
client cannot take more than its share: bodies, heads, streams, answers that it does not take, and its time
on the event loop are bounded, and what is refused is refused in the protocol's own way.

The package imports nothing of Hopline. Applications give it handlers, refusals and a budget; its errors say
which limit was reached (`CallError.limit`, `DecompressedTooLarge.is_limit`), and the application knows the
name of the setting.
"""

__version__ = "0.1.0"
