"""Compressed request bodies, bounded: a few kilobytes must not become gigabytes."""

from __future__ import annotations

import zlib

from hopline.errors import BadRequest, RequestTooLarge

#: Window bits that make zlib look for a gzip or a zlib header by itself; raw deflate is tried after.
_AUTO = zlib.MAX_WBITS | 32


def decompress(encoding: str, body: bytes, max_bytes: int) -> bytes:
    """Undo a Content-Encoding.

    Args:
        encoding: the header's value: gzip, x-gzip, deflate or identity.
        body: as sent.
        max_bytes: limit of the result.

    Raises:
        BadRequest: another encoding, or damaged or truncated data.
        RequestTooLarge: more than `max_bytes` once decompressed.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in ("gzip", "x-gzip", "deflate"):
        raise BadRequest(f"content-encoding {encoding!r} is not supported; send gzip, deflate or identity")
    windows = (_AUTO, -zlib.MAX_WBITS) if name == "deflate" else (_AUTO,)
    for window in windows:
        stream = zlib.decompressobj(window)
        try:
            data = stream.decompress(body, max_bytes + 1)
        except zlib.error:
            continue
        if len(data) > max_bytes:
            raise RequestTooLarge(
                f"the body is larger than {max_bytes} bytes once decompressed (server.max_body_bytes)"
            )
        if stream.eof:
            return data
    raise BadRequest(f"the body is not whole and valid {name} data")
