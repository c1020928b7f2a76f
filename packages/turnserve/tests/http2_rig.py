"""An HTTP/2 connection in memory: the server's, and at its other end h2, which knows the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings

from turnserve.grpc.call import Call, Listener, Method
from turnserve.grpc.endpoint import GrpcEndpoint
from turnserve.grpc.status import CallError
from turnserve.http2.connection import Http2Connection
from turnserve.http2.frames import ACK, GOAWAY, PING, frame
from turnserve.turns import Turns, Waiting

HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "here"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


class Transport:
    """Takes what the server writes."""

    def __init__(self) -> None:
        self.written = b""
        self.is_reading = True
        self.at_eof = self.aborted = False

    def write(self, data: bytes) -> None:
        assert not self.at_eof, "nothing may be written behind the end"
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.at_eof = True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def get_extra_info(self, name: str) -> None:
        return None


class Repeat(Listener):
    """Answers each message of a stream with itself."""

    def __init__(self, call: Call) -> None:
        self.call = call

    def received(self) -> None:
        while (found := self.call.next_message()) is not None:
            self.call.unpack(*found, self._answer)
        if self.call.has_ended:
            self.call.finish()

    def _answer(self, data: bytes | Exception) -> None:
        assert isinstance(data, bytes)
        self.call.write(data)


class Alone(Turns):
    """Of a connection that has no others beside it: a turn has no end, and the next one comes at once."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)

    def wait(self, item: Waiting, *, to_be_read: bool = False) -> None:
        if to_be_read:
            item.go_on()
        else:
            super().wait(item)


class Served:
    """An endpoint with methods that tests need. A connection is alone, unless a test brings other turns.

    /t/Echo answers with its message, /t/Later when a test lets it, /t/Each every message of a stream, and
    /t/Hold takes nothing of a stream.
    """

    text_of: Callable[[CallError], str] = staticmethod(str)

    def __init__(self, **limits: Any) -> None:
        self.waiting: list[tuple[Call, bytes]] = []
        self.num_gone = 0
        self.failures: list[BaseException] = []
        settings = {"max_message_bytes": 1 << 20, "connection_age_s": 60.0, "read_timeout_s": 30.0}
        settings["turns"] = Alone()  # type: ignore[assignment]
        methods = [
            Method("Echo", lambda call, data: call.respond(data)),
            Method("Later", self._later),
            Method("Each", self._each, streams=True),
            Method("Hold", lambda call, data: call.hold(), streams=True),
        ]
        table = {f"/t/{method.name}".encode(): method for method in methods}
        self.endpoint = GrpcEndpoint(table, self._fail, **(settings | limits))

    def _later(self, call: Call, data: bytes) -> None:
        self.waiting.append((call, data))
        call.on_gone = self._gone

    def _each(self, call: Call, data: bytes) -> None:
        call.listener = Repeat(call)

    def _gone(self) -> None:
        self.num_gone += 1

    def _fail(self, call: Call, error: BaseException) -> None:
        self.failures.append(error)
        assert isinstance(error, CallError)
        call.finish(error.code, self.text_of(error))

    def release(self) -> None:
        """Answer what waits."""
        waiting, self.waiting = self.waiting, []
        for call, data in waiting:
            call.respond(data)


class Answer:
    """What came back on one stream."""

    def __init__(self) -> None:
        self.headers: list[dict[bytes, bytes]] = []
        self.data = b""
        self.ended = False
        self.reset: int | None = None

    @property
    def messages(self) -> list[bytes]:
        found, data = [], self.data
        while data:
            size = int.from_bytes(data[1:5], "big")
            found.append(data[5 : 5 + size])
            data = data[5 + size :]
        return found

    @property
    def status(self) -> int:
        return int(self.headers[-1][b"grpc-status"])

    @property
    def text(self) -> str:
        from urllib.parse import unquote

        return unquote(self.headers[-1].get(b"grpc-message", b"").decode())


class Client:
    """One connection to an endpoint, and what came over it."""

    def __init__(self, served: Served, settings: Mapping[int, int] | None = None) -> None:
        config = h2.config.H2Configuration(client_side=True, header_encoding=None)
        self.h2 = h2.connection.H2Connection(config)
        if settings:
            self.h2.local_settings = h2.settings.Settings(client=True, initial_values=dict(settings))
            self.h2.max_inbound_frame_size = self.h2.local_settings.max_frame_size
        self.transport = Transport()
        self.server: Http2Connection = served.endpoint()
        self.server.connection_made(self.transport)  # type: ignore[arg-type]
        self.answers: dict[int, Answer] = {}
        self.goaways: list[tuple[int, int]] = []
        #: Whether data that came is taken at once, and the client says so.
        self.takes = True
        self.h2.initiate_connection()
        self.exchange()

    def exchange(self, *, piece: int | None = None) -> None:
        """Carry bytes both ways until nobody has any."""
        while True:
            out = self.h2.data_to_send()
            for start in range(0, len(out), piece or max(len(out), 1)):
                self.server.data_received(out[start : start + (piece or len(out))])
            back, self.transport.written = self.transport.written, b""
            if any(each[3] == GOAWAY for each in frames_of(back)) or self.goaways:
                self._notify_end(back)
                return
            if back:
                self._notify(self.h2.receive_data(back))
            elif not out:
                return

    def _notify_end(self, data: bytes) -> None:
        """From a GOAWAY on, which is the end for h2: confirm it, as other clients do."""
        for each in frames_of(data):
            if each[3] == GOAWAY:
                self.goaways.append((int.from_bytes(each[9:13], "big"), int.from_bytes(each[13:17], "big")))
            elif each[3] == PING:
                self.server.data_received(frame(PING, ACK, 0, each[9:]))
        back, self.transport.written = self.transport.written, b""
        if back:
            self._notify_end(back)

    def raw(self, data: bytes) -> None:
        """Bytes that h2 would not send; what the library has to send goes first."""
        self.server.data_received(self.h2.data_to_send() + data)

    def goaway(self) -> tuple[int, bytes]:
        """Code and text of the GOAWAY among what was written."""
        for each in frames_of(self.transport.written):
            if each[3] == GOAWAY:
                return int.from_bytes(each[13:17], "big"), each[17:]
        raise AssertionError("no GOAWAY")

    def call(self, path: str, *messages: bytes, end: bool = True, **headers: str) -> int:
        """Begin a call; returns its stream."""
        number: int = self.h2.get_next_available_stream_id()
        extra = [(name.replace("_", "-"), value) for name, value in headers.items()]
        self.h2.send_headers(number, _ordered(path, extra))
        self.answers[number] = Answer()
        for message in messages:
            self.send(number, b"\0" + len(message).to_bytes(4, "big") + message)
        if end:
            self.h2.end_stream(number)
        return number

    def send(self, number: int, data: bytes) -> None:
        """Data, as the windows allow."""
        while data:
            size = min(
                self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size, len(data)
            )
            if size == 0:
                self.exchange()
                assert self.h2.local_flow_control_window(number), "the server lets nothing more come"
                continue
            self.h2.send_data(number, data[:size])
            data = data[size:]

    def ask(self, path: str, *messages: bytes, **headers: str) -> Answer:
        """A whole call."""
        number = self.call(path, *messages, **headers)
        self.exchange()
        return self.answers[number]

    def _notify(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                self.answers[event.stream_id].headers.append(dict(event.headers))
            elif isinstance(event, h2.events.DataReceived):
                self.answers[event.stream_id].data += event.data
                if self.takes and event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self.answers[event.stream_id].ended = True
            elif isinstance(event, h2.events.StreamReset):
                self.answers[event.stream_id].reset = int(event.error_code)


def _ordered(path: str, extra: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pseudo-headers first."""
    return [*HEADERS[:3], (":path", path), *HEADERS[3:], *extra]


def frames_of(data: bytes) -> list[bytes]:
    """Whole frames, heads included."""
    found = []
    while data:
        size = 9 + int.from_bytes(data[:3], "big")
        found.append(data[:size])
        data = data[size:]
    return found
