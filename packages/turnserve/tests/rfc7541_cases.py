"""The same of header blocks, by the sections of RFC 7541 (HPACK)."""

from __future__ import annotations

from packages.turnserve.tests.raw_http2 import END_HEADERS, HEADERS, frame, integer, literal
from packages.turnserve.tests.rfc9113_cases import BLOCK, Case, call, data

BROKEN = "GOAWAY COMPRESSION_ERROR, closed"
#: Of the static table: POST, http, and the index of :path.
POST_HTTP = b"\x83\x86"
ECHO = b"\x04\x07/t/Echo" + literal(b"content-type", b"application/grpc")


def sent(found: bytes, number: int = 1) -> bytes:
    """A call of Echo with this head."""
    return frame(HEADERS, END_HEADERS, number, found) + data(number, 1)


def huffman(*bits: str) -> bytes:
    """A value that is Huffman-coded with these bits, of a field a."""
    text = "".join(bits)
    assert len(text) % 8 == 0
    coded = int(text, 2).to_bytes(len(text) // 8, "big")
    return b"\x00\x01a" + integer(len(coded), 7, 0x80) + coded


#: The codes of "a" and "o", of five bits, and of EOS, of thirty.
LETTER_A, LETTER_O, EOS = "00011", "00111", "1" * 30

CASES = [
    Case("2.3.3", "an indexed field", sent(POST_HTTP + ECHO), "HEADERS 1"),
    Case("2.3.3", "an index beyond both tables", sent(BLOCK + b"\xbe"), BROKEN),
    Case("2.3.3", "a large index beyond both", sent(BLOCK + integer(5_000, 7, 0x80)), BROKEN),
    Case("2.3.3", "a name of an index beyond both", sent(BLOCK + integer(70, 4) + b"\1x"), BROKEN),
    Case(
        "2.3.2",
        "an entry of the dynamic table",
        sent(POST_HTTP + ECHO + literal(b"a", b"b", 0x40)) + sent(POST_HTTP + ECHO + b"\xbe", 3),
        "HEADERS 1, HEADERS 3",
    ),
    Case(
        "4.1",
        "an entry that was evicted",
        sent(POST_HTTP + ECHO + literal(b"a", b"b", 0x40))
        + sent(POST_HTTP + ECHO + literal(b"c", bytes(b"d" * 4_050), 0x40), 3)
        + sent(POST_HTTP + ECHO + b"\xbf", 5),
        f"HEADERS 1, HEADERS 3, {BROKEN}",
    ),
    Case(
        "4.4",
        "an entry larger than the table, which empties it",
        sent(POST_HTTP + ECHO + literal(b"a", b"b", 0x40))
        + sent(POST_HTTP + ECHO + literal(b"c", b"d" * 5_000, 0x40), 3)
        + sent(POST_HTTP + ECHO + b"\xbe", 5),
        f"HEADERS 1, HEADERS 3, {BROKEN}",
    ),
    Case("4.2", "a size update behind a field", sent(BLOCK + b"\x20"), BROKEN),
    Case("4.2", "a size update at the beginning", sent(b"\x20" + BLOCK), "HEADERS 1"),
    Case("4.2", "two size updates at the beginning", sent(b"\x20\x3f\xe1\x1f" + BLOCK), "HEADERS 1"),
    Case(
        "4.3",
        "an entry behind a size update to 0",
        sent(POST_HTTP + ECHO + literal(b"a", b"b", 0x40))
        + sent(b"\x20\x3f\xe1\x1f" + POST_HTTP + ECHO + b"\xbe", 3),
        f"HEADERS 1, {BROKEN}",
    ),
    Case("5.1", "an integer that is cut off", sent(BLOCK + b"\xff"), BROKEN),
    Case("5.1", "an integer beyond 64 bits", sent(BLOCK + b"\xff" + b"\xff" * 11 + b"\x01"), BROKEN),
    Case("5.1", "an integer of 16,000 bytes", sent(b"\xff" + b"\x80" * 16_000 + b"\x01"), BROKEN),
    Case("5.2", "a string that is cut off", sent(BLOCK + b"\x00\x01a\x05bc"), BROKEN),
    Case("5.2", "a Huffman code", sent(BLOCK + huffman(LETTER_A, LETTER_O, LETTER_A, "1")), "HEADERS 1"),
    Case("5.2", "padding of a whole byte", sent(BLOCK + huffman(LETTER_A, "111", "1" * 8)), BROKEN),
    Case("5.2", "padding of zeros", sent(BLOCK + huffman(LETTER_A, "000")), BROKEN),
    Case("5.2", "EOS in a string", sent(BLOCK + huffman(LETTER_A, EOS, LETTER_A)), BROKEN),
    Case("5.2", "EOS as padding", sent(BLOCK + huffman(LETTER_A, LETTER_A, EOS)), BROKEN),
    Case("6.1", "the index 0", sent(BLOCK + b"\x80"), BROKEN),
    Case("6.2.1", "a literal without name and value", sent(BLOCK + b"\x40"), BROKEN),
    Case("6.2.2", "a literal without indexing", sent(BLOCK + literal(b"a", b"b", 0x00)), "HEADERS 1"),
    Case("6.2.3", "a literal that is never indexed", sent(BLOCK + literal(b"a", b"b", 0x10)), "HEADERS 1"),
    Case("6.3", "a size above the one that was announced", sent(b"\x3f\xe2\x1f" + BLOCK), BROKEN),
    Case("6.3", "the size that was announced", sent(b"\x3f\xe1\x1f" + BLOCK), "HEADERS 1"),
    Case(
        "6.3", "size updates without end", sent(b"\x20" * 100 + BLOCK), "GOAWAY ENHANCE_YOUR_CALM, closed"
    ),
    Case(
        "10.5.1 of RFC 9113",
        "a field that is meant again and again",
        sent(literal(b"a", b"b" * 4_000, 0x40) + b"\xbe" * 40),
        "GOAWAY ENHANCE_YOUR_CALM, closed",
    ),
    Case(
        "2.2",
        "a malformed request's entries are in the table",
        frame(HEADERS, 4, 1, literal(b"a", b"b", 0x40)) + sent(POST_HTTP + ECHO + b"\xbe", 3),
        "RST 1 PROTOCOL_ERROR, HEADERS 3",
    ),
    Case(
        "2.2",
        "a refused stream's entries are in the table",
        sent(
            POST_HTTP
            + b"\x04\x05/t/No"
            + literal(b"content-type", b"application/grpc")
            + literal(b"a", b"b", 0x40)
        )
        + sent(POST_HTTP + ECHO + b"\xbe", 3),
        "HEADERS 1, RST 1 NO_ERROR, HEADERS 3",
    ),
    Case("2.2", "nothing of this spoils a connection", call(1) + call(3), "HEADERS 1, HEADERS 3"),
]
