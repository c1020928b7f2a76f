"""What harnesses share: pieces of bytes, a transport in memory, the applications around a fake service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import Any

import msgspec

from hopline.config.reader import load_config
from hopline.config.schema import Config
from hopline.errors import HoplineError
from hopline.transports.grpc import GrpcApp
from hopline.transports.http import HttpApp
from hopline.transports.http_errors import http_status
from hopline.types import ScoreRequest, ScoreResult
from tests.fake_service import FakeService
from turnserve.http1.messages import Pending, Request, Response
from turnserve.turns import Turns, Waiting

#: Models of the fake service that fail or wait on purpose.
_ON_PURPOSE = ("slow", "broken", "busy", "loading")
#: Longer bodies are refused.
MAX_BODY_BYTES = 100_000
#: Characters of an error text.
MAX_TEXT = 8192
runner = asyncio.Runner()


def pieces(data: bytes, seed: int) -> list[bytes]:
    """The same bytes, cut at random: nowhere, anywhere, or behind each byte."""
    rng = random.Random(seed)
    if seed % 8 == 0:
        return [data[at : at + 1] for at in range(len(data))]
    ends = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(8)))
    return [
        data[begin:end] for begin, end in zip([0, *ends], [*ends, len(data)], strict=True) if begin < end
    ]


class Alone(Turns):
    """Of a connection that has no others beside it: its turn comes at once."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)

    def wait(self, item: Waiting, *, to_be_read: bool = False) -> None:
        item.go_on()


class Transport:
    """Takes what a connection writes.

    Attributes:
        written: in order.
        is_reading, is_closed: as the connection wants it.
    """

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_reading, self.is_closed, self.at_eof = True, False, False

    def write(self, data: bytes) -> None:
        assert not self.at_eof, "nothing may be written behind the end"
        self.written += data

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.at_eof = True

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str) -> None:
        return None


class _Failures(logging.Handler):
    """Remembers unexpected errors: those that are logged with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(record)


_failures = _Failures()
logging.getLogger("hopline").addHandler(_failures)
logging.getLogger("hopline").propagate = False


def assert_no_failure() -> None:
    """Nothing was logged as unexpected since the last call; else that error is raised here."""
    found, _failures.found = _failures.found, []
    if found:
        assert found[0].exc_info is not None
        raise AssertionError(found[0].getMessage()) from found[0].exc_info[1]


class SteadyService(FakeService):
    """A fake service whose models answer at once, and whose answers do not depend on the clock."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for name in _ON_PURPOSE:
            del self._models[name]

    def _checked_answer(self, request: ScoreRequest) -> ScoreResult:
        result = super()._checked_answer(msgspec.structs.replace(request, deadline=None))
        return msgspec.structs.replace(result, graph_through_ms=0)


#: Limits as those of a server, a small body aside; and the applications of both transports.
CONFIG = load_config(overrides={"server.max_body_bytes": MAX_BODY_BYTES})
SERVICE = SteadyService(CONFIG)
with contextlib.suppress(StopIteration):
    SERVICE.start().send(None)  # waits for nothing: forks of this process have event loops of their own
HTTP_APP, GRPC_APP = HttpApp(SERVICE, CONFIG), GrpcApp(SERVICE)


def check_refusal(error: HoplineError) -> None:
    """An error that a client may be told: it is the client's, and does not repeat what was sent."""
    assert http_status(error) < 500 or http_status(error) == 503, error
    check_text(str(error))


def check_text(text: str | bytes) -> None:
    """A text for clients is short, whatever they sent, and tells no address of the server's memory."""
    shown = text if isinstance(text, str) else text.decode(errors="replace")
    assert len(shown) <= MAX_TEXT, f"{len(shown)} characters repeat what was sent: {shown[:200]!r}"
    assert "at 0x" not in shown, shown


def answered(
    path: bytes, body: bytes, headers: dict[bytes, bytes] | None = None, method: bytes = b"POST"
) -> Response:
    """What HTTP's application answers; it is no failure of the server."""

    async def ask() -> Response:
        answer = HTTP_APP(Request(method, path, dict(headers or {}), body))
        if isinstance(answer, Pending):
            while answer.response is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
            answer = answer.response
        return answer

    response = runner.run(ask())
    assert_no_failure()
    assert response.status < 500, response.body
    if response.status != 200:
        check_text(response.body)
    return response
