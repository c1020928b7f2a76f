"""Reading of large bodies: decompressed and counted on a thread, outside the event loop.

        body ── small ─────────────────────────────────────────▸ decoded, on the loop
          └──── large or compressed ──▸ thread: decompress, count ──▸ refused, or decoded as above
                                                                      (scores: on the thread, in slices)
A decoder holds the interpreter lock, on any thread. So a body is decoded only after its counts show that
this is short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeAlias

from hopline.errors import RequestTooLarge
from hopline.transports import json_scan
from hopline.transports.body_threads import THREADS
from hopline.transports.compression import decompress
from hopline.transports.oip import check_count
from hopline.transports.oip_json import json_part
from hopline.transports.score_json import InputsBody, decode_large
from hopline.transports.shares import check_share, most_objects
from turnserve.compression import PIECE_BYTES, sent_bytes
from turnserve.http1.messages import Pending, Request, Response

#: Cost limit of building a piece of JSON, in units of a small integer: some milliseconds.
_WEIGHT = 2**17
#: Inputs or outputs of a request, and names of an object; more than any model has.
_MAX_TENSORS = _MAX_NAMES = 4096
#: Compressed bodies up to this size are first tried on the loop: a thread switch may need longer.
_TRIED_BYTES = 4 * 1024

#: Counts the values of a body, on a thread, and raises a HoplineError if they are too many; may decode it.
Check: TypeAlias = Callable[[Mapping[bytes, bytes], bytes], object]


def check_json(headers: Mapping[bytes, bytes], body: bytes) -> json_scan.Counts:
    """Count a JSON body.

    Raises:
        BadRequest: a name is repeated in an object.
        RequestTooLarge: it contains more than its sender's share.
    """
    text = json_part(body, headers.get(b"inference-header-content-length"))
    counts, sent = json_scan.count(text), sent_bytes(body)
    most = most_objects(_WEIGHT, sent, len(body))
    check_share("the body", counts.weight, "values (objects count several times)", most, sent)
    _check_most(counts.longest_object, "names in one object", _MAX_NAMES)
    for name in ("inputs", "outputs"):
        _check_most(counts.lists.get(name.encode(), 0), name, _MAX_TENSORS)
    json_scan.refuse_repeated(text, counts.num_names)
    return counts


def _check_most(count: int, what: str, most: int) -> None:
    if count > most:
        raise RequestTooLarge(f"the body holds {count} {what}; at most {most} are allowed")


def check_change(headers: Mapping[bytes, bytes], body: bytes) -> None:
    """Refuse a body that is larger than any change of models needs.

    Raises: RequestTooLarge.
    """
    if len(body) > PIECE_BYTES:
        raise RequestTooLarge(
            f"the body has {len(body)} bytes; at most {PIECE_BYTES} are allowed for this request: send the "
            "names of models and graphs, not their content"
        )


def check_score(max_nodes: int) -> Check:
    """Return a check that decodes score requests, with a limit of nodes, pairs or rows."""

    def check(headers: Mapping[bytes, bytes], body: bytes) -> InputsBody:
        lists = check_json(headers, body).lists
        check_count(lists.get(b"nodes", 0) + lists.get(b"inline", 0), "nodes", max_nodes)
        check_count(lists.get(b"columns", 0), "rows", max_nodes)
        for name in (b"pairs", b"edges", b"rows", b"context"):
            check_count(lists.get(name, 0), name.decode(), max_nodes)
        return decode_large(body)

    return check


def is_small(request: Request) -> bool:
    """Return True if a body can be decoded on the loop; a small compressed body is decompressed here.

    Raises: BadRequest, UnsupportedEncoding: it cannot be decompressed.
    """
    encoding = request.headers.get(b"content-encoding")
    if encoding is None:
        return len(request.body) <= PIECE_BYTES
    if len(request.body) > _TRIED_BYTES:
        return False
    try:
        request.body = decompress(encoding.decode("latin-1"), request.body, PIECE_BYTES)
    except RequestTooLarge:
        return False
    return True


def read(request: Request, check: Check | None, max_bytes: int) -> asyncio.Future[None]:
    """Decompress and count a request's body on a thread."""

    def work() -> None:
        encoding = request.headers.get(b"content-encoding")
        if encoding is not None:
            request.body = decompress(encoding.decode("latin-1"), request.body, max_bytes)
        if check is not None:
            found = check(request.headers, request.body)
            request.is_counted, request.decoded = True, found if isinstance(found, InputsBody) else None

    return asyncio.get_running_loop().run_in_executor(THREADS, work)


class Reading(Pending):
    """The answer to a request whose body is still being read.

    Args:
        reading: done when the body is read.
        answer: answers the request then, even if reading failed; never raises.
    """

    __slots__ = ("_answer", "_inner", "_reading")

    def __init__(
        self, reading: asyncio.Future[None], answer: Callable[[asyncio.Future[None]], Response | Pending]
    ) -> None:
        super().__init__()
        self._reading = reading
        self._answer = answer
        self._inner: Pending | None = None
        reading.add_done_callback(self._read)

    def _read(self, reading: asyncio.Future[None]) -> None:
        if reading.cancelled():
            return
        answer = self._answer(reading)
        if isinstance(answer, Response):
            self.answer(answer)
        elif answer.response is not None:
            self.answer(answer.response)
        else:
            self._inner = answer
            answer.receiver = self._answered

    def _answered(self, inner: Pending) -> None:
        assert inner.response is not None
        self._inner = None
        self.answer(inner.response)

    def cancel(self) -> None:
        """Withdraw the request; a body that is being read is still read to its end."""
        self._reading.cancel()
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.receiver = None
            inner.cancel()
