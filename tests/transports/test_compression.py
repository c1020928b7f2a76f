"""Content-Encoding as RFC 9110 and RFC 1952 have it, and as clients get it wrong."""

from __future__ import annotations

import functools
import gzip
import zlib

import httpx
import pytest

from hopline.errors import BadRequest, RequestTooLarge, UnsupportedEncoding
from hopline.transports.compression import decompress
from tests.servers import RunningServer

#: Without the time: the names of tests contain what they send.
compress = functools.partial(gzip.compress, mtime=0)
TEXT = b'{"nodes": [42, 7]}' * 3000
RAW = zlib.compressobj(wbits=-15)
RAW_TEXT = RAW.compress(TEXT) + RAW.flush()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", compress(TEXT)),
        ("GZIP", compress(TEXT)),
        (" x-gzip ", compress(TEXT)),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", zlib.compress(TEXT, 0)),
        ("deflate", RAW_TEXT),
        ("identity", TEXT),
        ("", TEXT),
        ("gzip, identity", compress(TEXT)),
        ("gzip, deflate", zlib.compress(compress(TEXT))),
        ("gzip,gzip", compress(compress(TEXT))),
        ("gzip", b"".join(compress(TEXT[at : at + 999]) for at in range(0, len(TEXT), 999))),
        ("gzip", compress(b"") + compress(TEXT) + b"\0" * 700),
        ("gzip", compress(TEXT[:9]) + b"\0" * 5 + compress(TEXT[9:])),
    ],
)
def test_all_of_a_body_is_read(encoding: str, body: bytes) -> None:
    assert decompress(encoding, body, len(TEXT)) == TEXT


@pytest.mark.parametrize(
    ("encoding", "body", "text"),
    [
        ("gzip", compress(TEXT)[:-4], "truncated"),
        ("gzip", compress(TEXT)[:30], "truncated"),
        ("gzip", compress(TEXT) + compress(TEXT)[:-1], "truncated"),
        ("gzip", compress(b"a") + b"more", "invalid gzip data at byte 21"),
        ("gzip", TEXT, "not valid gzip data"),
        ("gzip", zlib.compress(TEXT), "not valid gzip data"),
        ("gzip", compress(TEXT)[:-8] + b"\1" * 8, "not valid gzip data"),
        ("deflate", zlib.compress(TEXT)[:-1], "truncated"),
        ("deflate", RAW_TEXT[:-1], "truncated"),
        ("deflate", zlib.compress(TEXT) + b"more", "4 bytes follow"),
        ("deflate", b"\xff" * 20, "not valid deflate data"),
        ("gzip", compress(b"") * 10_001, "more than 10000 members"),
        (", ".join(["gzip"] * 9), b"x", "9 encodings; at most 4"),
    ],
)
def test_damaged_bodies_are_refused(encoding: str, body: bytes, text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        decompress(encoding, body, 10 * len(TEXT))


def test_the_limit_is_that_of_all_members_and_of_each_encoding() -> None:
    with pytest.raises(RequestTooLarge, match="larger than 1000 bytes once"):
        decompress("gzip", compress(b" " * 600) * 2, 1000)
    with pytest.raises(RequestTooLarge):
        decompress("gzip, gzip", compress(compress(b" " * 5_000_000)), 1000)


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, br", "none"])
def test_other_encodings_are_415_with_what_is_accepted(server: RunningServer, encoding: str) -> None:
    with pytest.raises(UnsupportedEncoding):
        decompress(encoding, b"", 1000)
    url = f"{server.url}/v1/models/sage/score"
    answer = httpx.post(url, content=b"x", headers={"content-encoding": encoding})
    assert answer.status_code == 415
    assert answer.headers["accept-encoding"] == "gzip, deflate"
    assert answer.json()["error"]["code"] == "unsupported_encoding"
