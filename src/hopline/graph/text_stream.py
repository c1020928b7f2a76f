"""Delimited text files in one plain form: decompressed, UTF-8, without header, comments or runs of blanks.

pyarrow reads the result. Compression is detected by the first bytes, and a damaged or truncated archive
is an error. `records` reads the same file slowly, to find the line of a record.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from hopline.errors import GraphError
from hopline.graph.arrow import arrow

_BLOCK_BYTES = 4 << 20
#: Endings of packed files; the ending before them names the format.
PACKED = (".gz", ".bz2", ".xz", ".zst")
_MAGIC: dict[bytes, Callable[[BinaryIO, Path], Any]] = {
    b"\x1f\x8b": lambda raw, _: gzip.GzipFile(fileobj=raw),
    b"BZh": lambda raw, _: bz2.BZ2File(raw),
    b"\xfd7zXZ\x00": lambda raw, _: lzma.LZMAFile(raw),  # noqa: SIM115
    b"\x28\xb5\x2f\xfd": lambda _, path: arrow("pyarrow").input_stream(str(path), compression="zstd"),
}
_DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)


class Text:
    """A text file, decoded.

    Args:
        path: plain, or packed with gzip, bzip2, xz or Zstandard.
        encoding: of the text.
        progress: called with the share of the file that is read.
    """

    def __init__(self, path: Path, encoding: str, progress: Callable[[float], None]) -> None:
        self.path = path
        self._encoding = encoding
        self._progress = progress

    def blocks(self) -> Iterator[str]:
        """Yield the text in blocks of whole lines, without a byte order mark.

        Raises: GraphError: another encoding, or a damaged archive.
        """
        try:
            "".encode(self._encoding)  # refuses codecs of other things than text
            name = codecs.lookup(self._encoding).name
        except (LookupError, UnicodeError):
            raise GraphError(
                f"unknown encoding {self._encoding!r}; use utf-8, latin-1 or cp1252, for example"
            ) from None
        decoder = codecs.getincrementaldecoder("utf-8-sig" if name == "utf-8" else name)()
        rest, lines = "", 0
        for block in self._unpacked():
            try:
                text = rest + decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                line = lines + rest.count("\n") + error.object[: error.start].count(b"\n") + 1
                why = _not_decoded(error, self._encoding)
                raise GraphError(f"{self.path}, line {line}: cannot be read as text: {why}") from None
            except UnicodeError as error:
                raise GraphError(
                    f"{self.path} cannot be read as {self._encoding}: {error}; name the order of its bytes "
                    f"({name}-le or {name}-be), or another encoding"
                ) from None
            end = text.rfind("\n") + 1 if block else len(text)
            lines += text.count("\n", 0, end)
            if end:
                yield text[:end]
            rest = text[end:]

    def _unpacked(self) -> Iterator[bytes]:
        """Yield blocks of bytes, and an empty one at the end."""
        try:
            with self.path.open("rb") as raw:
                start = raw.read(6)
                raw.seek(0)
                if start[:4] == b"PK\x03\x04":
                    raise GraphError(f"{self.path} is a zip archive; extract it first")
                size = max(1, self.path.stat().st_size)
                opened = next((opens for magic, opens in _MAGIC.items() if start.startswith(magic)), None)
                stream: Any = opened(raw, self.path) if opened else raw
                while block := stream.read(_BLOCK_BYTES):
                    yield block
                    self._progress(min(1.0, raw.tell() / size))
                yield b""
        except _DAMAGED as error:
            # it began as one
            is_longer = isinstance(error, gzip.BadGzipFile) and str(error).startswith("Not a gzipped file")
            why = f"{error}; is the archive damaged or truncated?"
            why = "other bytes follow the archive's end; pack it again without them" if is_longer else why
            raise GraphError(f"{self.path} cannot be read completely: {why}") from None


class PlainStream(io.RawIOBase):
    """A text file as a byte stream for pyarrow.

    Args:
        blocks: of text, whole lines. plain: transforms each block.
    """

    def __init__(self, blocks: Iterator[str], plain: Callable[[str], str]) -> None:
        self._blocks = blocks
        self._plain = plain
        self._ready = memoryview(b"")
        #: Number of quotes so far: an odd number means that one is not closed.
        self.num_quotes = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes."""
        while not self._ready:
            block = next(self._blocks, None)
            if block is None:
                return 0
            text = self._plain(block)
            self.num_quotes += text.count('"')
            self._ready = memoryview(text.encode())
        taken = min(len(buffer), len(self._ready))
        buffer[:taken] = self._ready[:taken]
        self._ready = self._ready[taken:]
        return taken


def records(blocks: Iterator[str], quotes: bool = True) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1 on, text without its line end) of every record that is not blank.

    A record continues over lines while a quote is open.
    """
    number, begin, open_record = 0, 1, ""
    for block in blocks:
        for line in io.StringIO(block, newline=""):
            number += 1
            if not open_record:
                begin = number
            open_record += line
            if quotes and open_record.count('"') % 2:
                continue
            text = open_record.rstrip("\r\n")
            open_record = ""
            if text.strip():
                yield begin, text
    if open_record.strip():
        yield begin, open_record.rstrip("\r\n")


def fields(record: str, delimiter: str) -> list[str]:
    """The cells of one record, without quotes and without blanks around them."""
    if delimiter == " ":
        return record.split()
    cell = rf'\s*"(?:[^"]|"")*"[^{re.escape(delimiter)}]*|[^{re.escape(delimiter)}]*'
    found, at = [], 0
    while True:
        match = re.compile(cell).match(record, at)
        assert match is not None  # the empty cell matches everywhere
        text = match[0].strip()
        quoted = len(text) > 1 and text[0] == text[-1] == '"'
        found.append(text[1:-1].replace('""', '"') if quoted else text)
        at = match.end() + 1
        if at > len(record):
            return found


def _not_decoded(error: UnicodeDecodeError, encoding: str) -> str:
    start = error.object[:2]
    likely = "utf-16" if start in (b"\xff\xfe", b"\xfe\xff") else "latin-1 or cp1252"
    byte = error.object[error.start]
    return f"byte 0x{byte:02x} is not {encoding}; set the file's encoding: --encoding {likely}"
