"""What a server has to make of what a client sends, by the sections of RFC 9113.

Each case: what is sent behind the greeting, and what the server decides, in order. "GOAWAY x" stands for a
connection error, "RST n x" for a stream error, "HEADERS n" for an answer, "" for nothing: the connection
lives on in the last three. Where the RFC leaves a choice, the table has the one that is made here.
"""

from __future__ import annotations

from typing import NamedTuple

from packages.turnserve.tests.raw_http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    block,
    frame,
    rst,
    settings,
    window_update,
)

MAX_WINDOW = 2**31 - 1
GOAWAY_PROTOCOL = "GOAWAY PROTOCOL_ERROR, closed"
GOAWAY_SIZE = "GOAWAY FRAME_SIZE_ERROR, closed"
GOAWAY_FLOW = "GOAWAY FLOW_CONTROL_ERROR, closed"
GOAWAY_CLOSED = "GOAWAY STREAM_CLOSED, closed"


class Case(NamedTuple):
    """Attributes:
    section: of the RFC.
    what: is sent.
    data: the bytes.
    verdict: the server's.
    """

    section: str
    what: str
    data: bytes
    verdict: str


def fields(path: str = "/t/Later", *more: tuple[str, str], **changed: str | None) -> list[tuple[str, str]]:
    """Of a call; None leaves one out."""
    pseudo = {"method": "POST", "scheme": "http", "path": path} | changed
    found = [(f":{name}", value) for name, value in pseudo.items() if value is not None]
    return [*found, ("content-type", "application/grpc"), ("te", "trailers"), *more]


def head(number: int = 1, flags: int = END_HEADERS, path: str = "/t/Later", **changed: str | None) -> bytes:
    """HEADERS of a call that is not answered, unless another method is named."""
    return frame(HEADERS, flags, number, block(*fields(path, **changed)))


def data(number: int = 1, flags: int = 0, content: bytes = b"\0\0\0\0\2hi") -> bytes:
    return frame(DATA, flags, number, content)


def call(number: int = 1, path: str = "/t/Echo") -> bytes:
    return head(number, path=path) + data(number, END_STREAM)


def reserved(sent: bytes) -> bytes:
    """A frame with the bit set that has no meaning."""
    return sent[:5] + bytes([sent[5] | 0x80]) + sent[6:]


BLOCK = block(*fields("/t/Echo"))
#: A stream whose halves are both closed, and one that its client gave up.
ANSWERED, GIVEN_UP = call(), head() + rst(1)
HALF_CLOSED = head() + data(1, END_STREAM)
PRIO = b"\0\0\0\0\x0f"
PROMISE = frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + BLOCK)

FRAMES = [
    Case("4.1", "a frame of an unknown kind", frame(0x7F, 0xFF, 0, b"whatever"), ""),
    Case("4.1", "the same for a stream that there is not", frame(0x7F, 0, 9, b"whatever"), ""),
    Case("4.1", "flags that have no meaning", frame(PING, 0xFE & ~ACK, 0, bytes(8)) + call(), "HEADERS 1"),
    Case("4.1", "the reserved bit of PING", reserved(frame(PING, 0, 0, bytes(8))), ""),
    Case("4.1", "the reserved bit of HEADERS", reserved(head(path="/t/Echo")) + data(1, 1), "HEADERS 1"),
    Case("4.1", "an unknown kind within a head", head(flags=0) + frame(0x7F, 0, 1), GOAWAY_PROTOCOL),
    Case(
        "4.2",
        "DATA as long as a frame may be",
        head() + data(content=b"\0\0\0\x3f\xfb" + bytes(16_379)),
        "",
    ),
    Case("4.2", "DATA that is longer", head() + frame(DATA, 0, 1, bytes(16_385)), GOAWAY_SIZE),
    Case("4.2", "HEADERS that are longer", frame(HEADERS, 5, 1, bytes(16_385)), GOAWAY_SIZE),
    Case("4.2", "an unknown kind that is longer", frame(0x7F, 0, 0, bytes(16_385)), GOAWAY_SIZE),
    Case("4.2", "a length of 2^24 - 1", frame(PING, 0, 0, b"", 2**24 - 1), GOAWAY_SIZE),
    Case(
        "4.3", "HEADERS that no HPACK is", frame(HEADERS, 5, 1, b"\x40"), "GOAWAY COMPRESSION_ERROR, closed"
    ),
    Case("4.3", "HEADERS of another stream within a head", head(flags=0) + head(3), GOAWAY_PROTOCOL),
    Case("4.3", "PRIORITY within a head", head(flags=0) + frame(PRIORITY, 0, 1, PRIO), GOAWAY_PROTOCOL),
    Case("4.3", "RST_STREAM within a head", head(flags=0) + rst(1), GOAWAY_PROTOCOL),
    Case("4.3", "DATA within a head", head(flags=0) + data(), GOAWAY_PROTOCOL),
]

STREAMS = [
    Case("5.1", "idle: DATA", data(), GOAWAY_PROTOCOL),
    Case("5.1", "idle: RST_STREAM", rst(1), GOAWAY_PROTOCOL),
    Case("5.1", "idle: WINDOW_UPDATE", window_update(1, 1), GOAWAY_PROTOCOL),
    Case("5.1", "idle: CONTINUATION", frame(CONTINUATION, 4, 1, BLOCK), GOAWAY_PROTOCOL),
    Case("5.1", "idle: PRIORITY", frame(PRIORITY, 0, 1, PRIO), ""),
    Case("5.1", "idle, of the server: WINDOW_UPDATE", head(3) + window_update(2, 1), GOAWAY_PROTOCOL),
    Case("5.1", "idle, of the server: RST_STREAM", head(3) + rst(2), GOAWAY_PROTOCOL),
    Case("5.1", "idle, of the server: DATA", head(3) + data(2), GOAWAY_PROTOCOL),
    Case(
        "5.1", "open: WINDOW_UPDATE and PRIORITY", head() + window_update(1, 9) + frame(2, 0, 1, PRIO), ""
    ),
    Case("5.1", "half-closed: DATA", HALF_CLOSED + data(), "RST 1 STREAM_CLOSED"),
    Case("5.1", "half-closed: HEADERS", HALF_CLOSED + head(flags=5), "RST 1 STREAM_CLOSED"),
    Case("5.1", "half-closed: CONTINUATION", HALF_CLOSED + frame(9, 4, 1, BLOCK), GOAWAY_PROTOCOL),
    Case("5.1", "half-closed: WINDOW_UPDATE", HALF_CLOSED + window_update(1, 9), ""),
    Case("5.1", "half-closed: PRIORITY", HALF_CLOSED + frame(PRIORITY, 0, 1, PRIO), ""),
    Case("5.1", "half-closed: RST_STREAM", HALF_CLOSED + rst(1), ""),
    Case("5.1", "closed: DATA", ANSWERED + data(), "HEADERS 1, RST 1 STREAM_CLOSED"),
    Case("5.1", "closed: HEADERS", ANSWERED + head(flags=5), f"HEADERS 1, {GOAWAY_CLOSED}"),
    Case("5.1", "closed: CONTINUATION", ANSWERED + frame(9, 4, 1, BLOCK), f"HEADERS 1, {GOAWAY_PROTOCOL}"),
    Case("5.1", "closed: WINDOW_UPDATE", ANSWERED + window_update(1, 9), "HEADERS 1"),
    Case("5.1", "closed: PRIORITY", ANSWERED + frame(PRIORITY, 0, 1, PRIO), "HEADERS 1"),
    Case("5.1", "closed: RST_STREAM", ANSWERED + rst(1), "HEADERS 1"),
    Case("5.1", "given up: DATA", GIVEN_UP + data(), "RST 1 STREAM_CLOSED"),
    Case("5.1", "given up: HEADERS", GIVEN_UP + head(flags=5), GOAWAY_CLOSED),
    Case("5.1", "given up: RST_STREAM", GIVEN_UP + rst(1), ""),
    Case("5.1", "given up: PRIORITY", GIVEN_UP + frame(PRIORITY, 0, 1, PRIO), ""),
    Case("5.1", "ended here: DATA on its way", head(path="/t/No") + data(), "HEADERS 1, RST 1 NO_ERROR"),
    Case(
        "5.1",
        "ended here: trailers on their way, and then more",
        head(path="/t/No") + frame(HEADERS, 5, 1, block(("a", "b"))) + data(),
        "HEADERS 1, RST 1 NO_ERROR, RST 1 STREAM_CLOSED",
    ),
    Case(
        "5.1",
        "ended here: DATA behind the client's RST_STREAM",
        head(path="/t/No") + rst(1) + data(),
        "HEADERS 1, RST 1 NO_ERROR, RST 1 STREAM_CLOSED",
    ),
    Case("5.1.1", "a stream of an even number", head(2), GOAWAY_PROTOCOL),
    Case("5.1.1", "a smaller number than before", head(5) + head(3), GOAWAY_PROTOCOL),
    Case("5.1.1", "a number that was passed over, as the first", head(3) + head(1), GOAWAY_PROTOCOL),
    Case(
        "5.1.1",
        "numbers with gaps",
        call(5) + call(9) + call(MAX_WINDOW),
        "HEADERS 5, HEADERS 9, HEADERS 2147483647",
    ),
    Case("5.1.1", "stream 0", head(0), GOAWAY_PROTOCOL),
    Case(
        "5.1.2",
        "one stream more than announced",
        b"".join(head(number) for number in range(1, 2 * 513, 2)),
        "RST 1025 REFUSED_STREAM",
    ),
    Case("5.2", "a stream's window of 1 MiB", head(path="/t/Hold") + data(content=bytes(16_384)) * 64, ""),
    Case(
        "5.2",
        "more than that",
        head(path="/t/Hold") + data(content=bytes(16_384)) * 65,
        "RST 1 FLOW_CONTROL_ERROR",
    ),
    Case(
        "5.2",
        "more than that, with its padding",
        head(path="/t/Hold") + data(content=bytes(16_384)) * 64 + data(1, PADDED, b"\0"),
        "RST 1 FLOW_CONTROL_ERROR",
    ),
    Case(
        "5.3",
        "HEADERS that depend on themselves",
        frame(HEADERS, 36, 1, b"\0\0\0\1\0" + BLOCK) + data(1, 1),
        "HEADERS 1",
    ),
    Case("5.4.1", "frames behind a connection error", head(2) + call(), GOAWAY_PROTOCOL),
    Case(
        "5.4.2",
        "a stream error leaves others",
        HALF_CLOSED + data() + call(3),
        "RST 1 STREAM_CLOSED, HEADERS 3",
    ),
    Case("5.5", "a setting that is not known", settings((0xF0F0, 1)) + call(), "HEADERS 1"),
]

KINDS = [
    Case("6.1", "DATA of stream 0", data(0), GOAWAY_PROTOCOL),
    Case("6.1", "padding", head(path="/t/Echo") + data(1, 9, b"\2\0\0\0\0\2hi\0\0"), "HEADERS 1"),
    Case("6.1", "padding as long as the frame", head() + data(1, PADDED, b"\4abc"), GOAWAY_PROTOCOL),
    Case("6.1", "padding longer", head() + data(1, PADDED, b"\xffabc"), GOAWAY_PROTOCOL),
    Case("6.1", "padding without its length", head() + data(1, PADDED, b""), GOAWAY_PROTOCOL),
    Case(
        "6.1",
        "padding beyond a frame of a closed stream",
        ANSWERED + data(1, PADDED, b"\x09a"),
        f"HEADERS 1, {GOAWAY_PROTOCOL}",
    ),
    Case("6.1", "DATA without content", head(path="/t/Echo") + data(content=b"") + data(1, 1), "HEADERS 1"),
    Case("6.2", "HEADERS of stream 0", frame(HEADERS, 5, 0, BLOCK), GOAWAY_PROTOCOL),
    Case("6.2", "padding", frame(HEADERS, 12, 1, b"\2" + BLOCK + b"\0\0") + data(1, 1), "HEADERS 1"),
    Case("6.2", "padding longer", frame(HEADERS, 12, 1, b"\xff" + BLOCK), GOAWAY_PROTOCOL),
    Case("6.2", "padding without its length", frame(HEADERS, 12, 1, b""), GOAWAY_PROTOCOL),
    Case("6.2", "a priority", frame(HEADERS, 36, 1, PRIO + BLOCK) + data(1, 1), "HEADERS 1"),
    Case("6.2", "a priority that is cut off", frame(HEADERS, 36, 1, PRIO[:4]), GOAWAY_SIZE),
    Case("6.2", "both", frame(HEADERS, 44, 1, b"\1" + PRIO + BLOCK + b"\0") + data(1, 1), "HEADERS 1"),
    Case("6.3", "PRIORITY of stream 0", frame(PRIORITY, 0, 0, PRIO), GOAWAY_PROTOCOL),
    Case("6.3", "a wrong length", head() + frame(PRIORITY, 0, 1, PRIO[:4]), "RST 1 FRAME_SIZE_ERROR"),
    Case("6.3", "a wrong length, of an idle stream", frame(PRIORITY, 0, 1, PRIO + b"\0"), GOAWAY_SIZE),
    Case("6.4", "RST_STREAM of stream 0", rst(0), GOAWAY_PROTOCOL),
    Case("6.4", "a wrong length", head() + frame(RST_STREAM, 0, 1, bytes(3)), GOAWAY_SIZE),
    Case("6.4", "an unknown code", head() + rst(1, 0xABCDEF) + call(3), "HEADERS 3"),
    Case("6.5", "SETTINGS of a stream", frame(SETTINGS, 0, 1), GOAWAY_PROTOCOL),
    Case("6.5", "a confirmation with content", frame(SETTINGS, ACK, 0, bytes(6)), GOAWAY_SIZE),
    Case("6.5", "a wrong length than of whole settings", frame(SETTINGS, 0, 0, bytes(5)), GOAWAY_SIZE),
    Case("6.5.2", "ENABLE_PUSH of 2", settings((2, 2)), GOAWAY_PROTOCOL),
    Case("6.5.2", "the same, then 0 in the same frame", settings((2, 2), (2, 0)), GOAWAY_PROTOCOL),
    Case("6.5.2", "ENABLE_PUSH of 0", settings((2, 0)), ""),
    Case("6.5.2", "INITIAL_WINDOW_SIZE of 2^31", settings((4, 2**31)), GOAWAY_FLOW),
    Case("6.5.2", "MAX_FRAME_SIZE of 2^14 - 1", settings((5, 2**14 - 1)), GOAWAY_PROTOCOL),
    Case("6.5.2", "MAX_FRAME_SIZE of 2^24", settings((5, 2**24)), GOAWAY_PROTOCOL),
    Case("6.5.2", "MAX_FRAME_SIZE of 2^24 - 1", settings((5, 2**24 - 1)), ""),
    Case("6.6", "PUSH_PROMISE", head() + PROMISE, GOAWAY_PROTOCOL),
    Case("6.7", "PING of a stream", frame(PING, 0, 1, bytes(8)), GOAWAY_PROTOCOL),
    Case("6.7", "a wrong length", frame(PING, 0, 0, bytes(6)), GOAWAY_SIZE),
    Case("6.7", "a confirmation of what was not asked", frame(PING, ACK, 0, bytes(8)), ""),
    Case("6.8", "GOAWAY of a stream", frame(GOAWAY, 0, 1, bytes(8)), GOAWAY_PROTOCOL),
    Case("6.8", "a GOAWAY that is too short", frame(GOAWAY, 0, 0, bytes(7)), GOAWAY_SIZE),
    Case("6.8", "GOAWAY, with calls under way", head() + frame(GOAWAY, 0, 0, bytes(12)), ""),
    Case("6.9", "an update by 0, of the connection", window_update(0, 0), GOAWAY_PROTOCOL),
    Case("6.9", "an update by 0, of a stream", head() + window_update(1, 0), "RST 1 PROTOCOL_ERROR"),
    Case("6.9", "a wrong length", frame(8, 0, 0, bytes(3)), GOAWAY_SIZE),
    Case("6.9", "the reserved bit", head() + window_update(1, 2**31 + 1), ""),
    Case("6.9.1", "a connection's window above 2^31 - 1", window_update(0, MAX_WINDOW), GOAWAY_FLOW),
    Case(
        "6.9.1",
        "a stream's window above 2^31 - 1",
        head() + window_update(1, MAX_WINDOW),
        "RST 1 FLOW_CONTROL_ERROR",
    ),
    Case(
        "6.9.1",
        "the same in two updates",
        head() + window_update(1, 2**30) + window_update(1, 2**30),
        "RST 1 FLOW_CONTROL_ERROR",
    ),
    Case(
        "6.9.2",
        "a setting that overflows a window",
        head() + window_update(1, MAX_WINDOW - 65_535) + settings((4, 65_536)),
        GOAWAY_FLOW,
    ),
    Case("6.10", "CONTINUATION of stream 0", head(flags=0) + frame(9, 4, 0, b""), GOAWAY_PROTOCOL),
    Case("6.10", "CONTINUATION of another stream", head(flags=0) + frame(9, 4, 3, b""), GOAWAY_PROTOCOL),
    Case("6.10", "CONTINUATION behind a whole head", head() + frame(9, 4, 1, b""), GOAWAY_PROTOCOL),
    Case("6.10", "CONTINUATION behind DATA", head() + data() + frame(9, 4, 1, b""), GOAWAY_PROTOCOL),
    Case("6.10", "a head whose end came", head(flags=0) + frame(9, 4, 1) + frame(9, 4, 1), GOAWAY_PROTOCOL),
    Case(
        "6.10",
        "a head in three parts",
        frame(HEADERS, 0, 1, BLOCK[:9])
        + frame(9, 0, 1, BLOCK[9:20])
        + frame(9, 4, 1, BLOCK[20:])
        + data(1, 1),
        "HEADERS 1",
    ),
    Case(
        "6.10",
        "a head without end",
        head(flags=0) + frame(CONTINUATION, 0, 1) * 70,
        "GOAWAY ENHANCE_YOUR_CALM, closed",
    ),
]


def malformed(section: str, what: str, *found: tuple[str, str]) -> Case:
    return Case(section, what, frame(HEADERS, END_HEADERS, 1, block(*found)), "RST 1 PROTOCOL_ERROR")


def with_field(section: str, name: str, value: str, what: str = "") -> Case:
    return malformed(section, what or f"{name}: {value}", *fields("/t/Later", (name, value)))


def with_length(*sent: bytes, length: str = "7") -> bytes:
    head = frame(HEADERS, END_HEADERS, 1, block(*fields("/t/Echo", ("content-length", length))))
    return head + b"".join(sent)


PSEUDO = fields()[:3]
REST = fields()[3:]
MALFORMED = [
    with_field("8.2", "content-Type", "x", "a name with a capital letter"),
    with_field("8.2.1", "a b", "x", "a name with a blank"),
    with_field("8.2.1", "a:b", "x", "a name with a colon"),
    with_field("8.2.1", "a\0", "x", "a name with NUL"),
    with_field("8.2.1", "a\x7f", "x", "a name with DEL"),
    with_field("8.2.1", "\xe4", "x", "a name that is not ASCII"),
    with_field("8.2.1", "", "x", "a name that is empty"),
    with_field("8.2.1", "a", "x\0y", "a value with NUL"),
    with_field("8.2.1", "a", "x\ry", "a value with CR"),
    with_field("8.2.1", "a", "x\ny", "a value with LF"),
    with_field("8.2.1", "a", "x\r\nb: y", "a value with a field in it"),
    with_field("8.2.1", "a", " x", "a value that begins with a blank"),
    with_field("8.2.1", "a", "x\t", "a value that ends with a tab"),
    with_field("8.2.2", "connection", "keep-alive"),
    with_field("8.2.2", "keep-alive", "timeout=5"),
    with_field("8.2.2", "proxy-connection", "keep-alive"),
    with_field("8.2.2", "transfer-encoding", "chunked"),
    with_field("8.2.2", "upgrade", "h2c"),
    malformed("8.2.2", "te: gzip", *PSEUDO, ("content-type", "application/grpc"), ("te", "gzip")),
    malformed("8.2.2", "te: trailers, gzip", *PSEUDO, ("te", "trailers, gzip")),
    with_field("8.2.2", "te", "gzip", "te twice"),
    malformed("8.3", "an unknown pseudo-header field", *PSEUDO, (":unknown", "x"), *REST),
    malformed("8.3", "one of answers", *PSEUDO, (":status", "200"), *REST),
    malformed("8.3", "one behind other fields", *PSEUDO[:2], *REST, PSEUDO[2]),
    malformed("8.3", "all behind other fields", *REST, *PSEUDO),
    malformed("8.3.1", "no field at all"),
    malformed("8.3.1", "no :method", *fields(method=None)),
    malformed("8.3.1", "no :scheme", *fields(scheme=None)),
    malformed("8.3.1", "no :path", *fields(path=None)),
    malformed("8.3.1", "an empty :method", *fields(method="")),
    malformed("8.3.1", "an empty :scheme", *fields(scheme="")),
    malformed("8.3.1", "an empty :path", *fields("")),
    malformed("8.3.1", "a :path without slash", *fields("t/Later")),
    malformed("8.3.1", ":path *, and no OPTIONS", *fields("*")),
    malformed("8.3.1", ":method twice", *PSEUDO, PSEUDO[0], *REST),
    malformed("8.3.1", ":scheme twice", *PSEUDO, PSEUDO[1], *REST),
    malformed("8.3.1", ":path twice", *PSEUDO, PSEUDO[2], *REST),
    malformed("8.3.1", ":path twice, once behind others", *fields(), PSEUDO[2]),
    malformed("8.3.1", ":authority twice", *PSEUDO, (":authority", "a"), (":authority", "a"), *REST),
    malformed("8.3.1", ":authority with a user", *PSEUDO, (":authority", "me@here"), *REST),
    malformed("8.3.1", "another host", *PSEUDO, (":authority", "here"), *REST, ("host", "there")),
    malformed("8.5", "CONNECT with a :path", (":method", "CONNECT"), (":authority", "a"), (":path", "/")),
    malformed("8.5", "CONNECT without :authority", (":method", "CONNECT")),
    Case("8.1", "HEADERS that end nothing, as trailers", head() + head(), "RST 1 PROTOCOL_ERROR"),
    Case("8.1", "trailers with pseudo-header fields", head() + head(flags=5), "RST 1 PROTOCOL_ERROR"),
    Case(
        "8.1",
        "trailers with one unknown",
        head() + frame(HEADERS, 5, 1, block((":x", "y"))),
        "RST 1 PROTOCOL_ERROR",
    ),
    Case(
        "8.1",
        "trailers with a capital letter",
        head() + frame(HEADERS, 5, 1, block(("A", "b"))),
        "RST 1 PROTOCOL_ERROR",
    ),
    Case(
        "8.1",
        "trailers",
        head(path="/t/Echo") + data() + frame(HEADERS, 5, 1, block(("a", "b"))),
        "HEADERS 1",
    ),
    Case("8.1.1", "content-length that is right", with_length(data(1, 1)), "HEADERS 1"),
    Case(
        "8.1.1",
        "the same in two frames",
        with_length(data(content=b"\0\0\0"), data(1, 1, b"\0\2hi")),
        "HEADERS 1",
    ),
    Case(
        "8.1.1", "the same, not counting padding", with_length(data(1, 9, b"\1\0\0\0\0\2hi\0")), "HEADERS 1"
    ),
    Case("8.1.1", "less content", with_length(data(1, 1), length="8"), "RST 1 PROTOCOL_ERROR"),
    Case("8.1.1", "more content", with_length(data(), length="6"), "RST 1 PROTOCOL_ERROR"),
    Case("8.1.1", "more content in a second frame", with_length(data(), data()), "RST 1 PROTOCOL_ERROR"),
    Case(
        "8.1.1",
        "less content before trailers",
        with_length(data(), frame(HEADERS, 5, 1, block(("a", "b"))), length="8"),
        "RST 1 PROTOCOL_ERROR",
    ),
    Case(
        "8.1.1",
        "no content at all",
        frame(HEADERS, 5, 1, block(*fields("/t/Echo", ("content-length", "1")))),
        "RST 1 PROTOCOL_ERROR",
    ),
    Case(
        "8.1.1",
        "a length of 5,000 digits",
        with_length(data(1, 1), length="9" * 5_000),
        "RST 1 PROTOCOL_ERROR",
    ),
    Case(
        "8.1.1", "a length that is no number", with_length(data(1, 1), length="+7"), "RST 1 PROTOCOL_ERROR"
    ),
    Case(
        "8.1.1",
        "a malformed request leaves others",
        head(path=None) + call(3),
        "RST 1 PROTOCOL_ERROR, HEADERS 3",
    ),
    Case(
        "8.3.1",
        "the same host",
        frame(
            HEADERS,
            4,
            1,
            block(*PSEUDO[:2], (":path", "/t/Echo"), (":authority", "here"), *REST, ("host", "here")),
        )
        + data(1, 1),
        "HEADERS 1",
    ),
    Case("8.3.1", "no :authority", call(), "HEADERS 1"),
    Case("8.3.1", "OPTIONS *", frame(HEADERS, 5, 1, block(*fields("*", method="OPTIONS"))), "HEADERS 1"),
    Case(
        "8.5",
        "CONNECT, which is not supported",
        frame(HEADERS, 5, 1, block((":method", "CONNECT"), (":authority", "a"))),
        "HEADERS 1",
    ),
    Case("8.2.2", "te: trailers", call(), "HEADERS 1"),
    Case("8.4", "a promise of a client", head() + PROMISE, GOAWAY_PROTOCOL),
]
