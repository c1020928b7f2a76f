"""HTTP's routes: any method, target, id and body has an answer."""

from __future__ import annotations

import re

from tests.fuzz.fed import answered

_METHODS = (b"GET", b"POST", b"HEAD", b"OPTIONS", b"DELETE")


def check(data: bytes) -> None:
    """Args: data: a method in the first byte, then the target, an id and a body, a line each."""
    if not data:
        return
    target, _, rest = data[1:].partition(b"\n")
    request_id, _, body = rest.partition(b"\n")
    headers = {b"x-request-id": request_id} if request_id else {}
    response = answered(b"/" + target, body, headers, _METHODS[data[0] % len(_METHODS)])
    found = re.match(rb"x-request-id: ([!-~]{1,128})\r\n", response.headers)
    assert found, "an answer has a request id, which is no other header"
