"""Decompression of request bodies, with the errors of Hopline: see `turnserve/compression.py`."""

from __future__ import annotations

from hopline.errors import BadRequest, RequestTooLarge, UnsupportedEncoding
from turnserve import compression


def decompress(encoding: str, body: bytes, max_bytes: int) -> bytes:
    """Undo a Content-Encoding, as `turnserve.compression.decompress`.

    Raises:
        UnsupportedEncoding: an unsupported encoding.
        BadRequest: damaged or truncated data, or bytes after its end.
        RequestTooLarge: more than `max_bytes` once decompressed.
    """
    try:
        return compression.decompress(encoding, body, max_bytes)
    except compression.UnknownEncoding as error:
        raise UnsupportedEncoding(str(error)) from None
    except compression.DecompressedTooLarge as error:
        setting = " (server.max_body_bytes)" if error.is_limit else ""
        raise RequestTooLarge(f"{error}{setting}") from None
    except compression.CompressionError as error:
        raise BadRequest(str(error)) from None
