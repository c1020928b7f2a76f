"""A request of OpenAI's API under way: answered whole, or as server-sent events.

    parts ─► rows: text that is not sent yet ─► events ─► sink
                  └─ grows while the client does not read, and becomes one event when it does

The text that waits for a client is at most its own answer. The engine never waits for a client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopline.errors import HoplineError
from hopline.types import ScoreResult, Ticket
from hopline_generate.openai.answers import Form
from hopline_generate.wire import Part, token_logprobs
from turnserve.http1.messages import JSON, BodyStream, Pending, Response, StreamedResponse

if TYPE_CHECKING:
    from hopline.transports.http_waiting import Application

EVENTS = b"text/event-stream; charset=utf-8"
#: Proxies that collect answers would delay the tokens.
_STREAM_HEADERS = b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"


class Generating(Pending):
    """A text that is answered whole.

    Args:
        app: makes responses of errors, and counts.
        form: of the answer.
        per_prompt: texts for each prompt.
        id_line: header line of the request's id.
    """

    __slots__ = ("_app", "_form", "_id_line", "_per_prompt", "ticket")

    def __init__(self, app: Application, form: Form, per_prompt: int, id_line: bytes) -> None:
        super().__init__()
        self.ticket: Ticket | None = None
        self._app = app
        self._form = form
        self._per_prompt = per_prompt
        self._id_line = id_line

    def deliver(self, outcome: ScoreResult | HoplineError) -> None:
        """Answer; never raises."""
        self.ticket = None
        try:
            if isinstance(outcome, HoplineError):
                raise outcome
            body = self._form.whole(outcome, self._per_prompt)
        except Exception as error:  # the boundary: whatever fails, the caller gets an answer
            self.answer(self._app.failed(error, self._id_line, oip=self._form.is_oip))
            return
        self._app.count_ok()
        self.answer(Response(body, 200, JSON, self._id_line))

    def cancel(self) -> None:
        """Withdraw the request."""
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            ticket.cancel()


class _Row:
    """One text of a stream: what is not sent yet.

    Attributes:
        finish: is sent with the last text.
        num_sent: characters.
    """

    __slots__ = ("finish", "has_begun", "logprobs", "num_sent", "text")

    def __init__(self) -> None:
        self.text = ""
        self.logprobs: list[tuple[str, float]] | None = None
        self.finish = ""
        self.has_begun = False
        self.num_sent = 0


class Streaming(Generating):
    """A text that is answered as events.

    The head is sent with the first part, so that a request that is refused gets its status.

    Args:
        num_rows: texts.
        has_usage: the last event has the usage.
    """

    __slots__ = ("_events",)

    def __init__(
        self,
        app: Application,
        form: Form,
        per_prompt: int,
        id_line: bytes,
        num_rows: int,
        *,
        has_usage: bool,
    ) -> None:
        super().__init__(app, form, per_prompt, id_line)
        self._events = Events(self, form, num_rows, has_usage)

    def take(self, row: int, part: Part) -> None:
        """A part came."""
        is_first = not self._events.is_open
        self._events.take(row, part)
        if is_first:
            self._events.is_open = True
            self._app.count_ok()
            headers = _STREAM_HEADERS + self._id_line
            self.answer(StreamedResponse(self._events, EVENTS, headers))

    def deliver(self, outcome: ScoreResult | HoplineError) -> None:
        """The last part came before, or the text has failed."""
        if not self._events.is_open:
            super().deliver(outcome)
            return
        self.ticket = None
        if isinstance(outcome, HoplineError):
            response = self._app.failed(outcome, self._id_line, oip=self._form.is_oip)
            self._events.end(b"data: %b\n\n" % response.body)
            return
        self._events.end(self._form.ending(outcome, self._per_prompt, has_usage=self._events.has_usage))


class Events(BodyStream):
    """The body of a stream.

    Attributes:
        is_open: True if the head was sent.
        has_usage: see `Streaming`.
    """

    __slots__ = ("_form", "_last", "_owner", "_rows", "has_usage", "is_open")

    def __init__(self, owner: Streaming, form: Form, num_rows: int, has_usage: bool) -> None:
        super().__init__()
        self.is_open = False
        self.has_usage = has_usage
        self._owner = owner
        self._form = form
        self._rows = [_Row() for _ in range(num_rows)]
        self._last: bytes | None = None

    def take(self, row: int, part: Part) -> None:
        """Add a part, and send it if the client reads."""
        found = self._rows[row]
        found.text += part.text
        if part.logprobs:
            found.logprobs = found.logprobs or []  # extended in place: a client may read nothing for long
            found.logprobs += token_logprobs(part)
        found.finish = part.finish or found.finish
        self.resumed()

    def end(self, last: bytes) -> None:
        """Add the end."""
        self._last = last
        self.resumed()

    def resumed(self) -> None:
        """As `BodyStream.resumed`."""
        sink = self.sink
        if sink is None or sink.is_blocked:
            return
        events = [event for at, row in enumerate(self._rows) for event in self._of(at, row)]
        if self._last is not None:
            events.append(self._last)
        if events:
            sink.write(b"".join(events))
        if self._last is not None:
            self.sink = None
            sink.end()

    def _of(self, at: int, row: _Row) -> list[bytes]:
        if not (row.text or row.finish or row.logprobs):
            return []
        form = self._form
        logprobs = form.logprobs(row.logprobs, row.num_sent)
        events = []
        if row.text or row.logprobs or not row.has_begun:
            events.append(form.event(at, row.text, logprobs, "", is_first=not row.has_begun))
        if row.finish:
            events.append(form.event(at, "", None, row.finish, is_first=False))
        row.has_begun = True
        row.num_sent += len(row.text)
        row.text, row.logprobs, row.finish = "", None, ""
        return events

    def gone(self) -> None:
        """As `BodyStream.gone`."""
        self.sink = None
        self._owner.cancel()
