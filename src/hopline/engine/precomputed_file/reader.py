"""Reads a precomputed file through a memory map."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.engine.precomputed_file.header import MAGIC, PAGE, Header, Section, max_head_bytes, unpacked
from hopline.errors import PrecomputedFileError
from hopline.files import check_regular
from hopline.graph import digest
from hopline.types import AnyArray, FloatArray, IdArray, Progress, silent

#: MADV_POPULATE_READ of Linux 5.14; Python 3.11 has no name for it.
_POPULATE_READ = 22
_libc: Any = ctypes.CDLL(None)


class PrecomputedFile:
    """A finished precomputed file, mapped. Its content never changes; threads and processes may share it.

    Attributes:
        path: where it was when it was opened.
        header: the decoded header.
        state: float32 [N, d]. logits: float32 [N, c], or None. computed_at: int64 [N].
        ids: uint64 [N]. All arrays are read-only views of the mapped file.
        pages: uint8, the whole map.
        identity: (device, inode, changed ns): if it differs, the path has another file now.
    """

    def __init__(
        self, path: Path, header: Header, pages: NDArray[np.uint8], identity: tuple[int, ...]
    ) -> None:
        self.path = path
        self.header = header
        self.pages = pages
        self.identity = identity
        self.sections = {section.name: section for section in header.sections}
        arrays = {name: _view(pages, section) for name, section in self.sections.items()}
        self.state: FloatArray = arrays["state"]
        self.logits: FloatArray | None = arrays.get("logits")
        self.computed_at: IdArray = arrays["computed_at"]
        self.ids: NDArray[np.uint64] = arrays["ids"]
        self._arrays = arrays

    @classmethod
    def open(cls, path: Path) -> PrecomputedFile:
        """Map a file; takes microseconds at any size. Contents are not read: see `verify`.

        Raises:
            PrecomputedFileError: it is missing, of another kind, damaged, truncated, or of a newer format.
        """
        header, identity, handle = _opened(path)
        try:
            mapped = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise PrecomputedFileError(f"{path} cannot be mapped: {error}") from None
        finally:
            os.close(handle)
        # Rows are requested in random order: read-ahead would evict requested pages.
        mapped.madvise(mmap.MADV_RANDOM)
        return cls(path, header, np.frombuffer(mapped, np.uint8), identity)

    def verify(self, progress: Progress = silent) -> None:
        """Read the whole file and compare it with the digests of the header.

        Raises: PrecomputedFileError: some sections differ; the error names them.
        """
        found = digest.digests(self._arrays, progress)
        wrong = [name for name, section in self.sections.items() if found[name] != section.blake2b]
        if wrong:
            raise PrecomputedFileError(
                f"{self.path} is damaged: {', '.join(wrong)} differ from their digests; run "
                "`hopline batch` again"
            )

    def populate(self) -> None:
        """Read the whole map into memory as far as it fits."""
        begin, num_bytes = self.pages.ctypes.data, self.pages.shape[0]
        _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(num_bytes), _POPULATE_READ)

    def is_replaced(self) -> bool:
        """True if the path has another file now."""
        try:
            return identity_of(os.stat(self.path)) != self.identity
        except OSError:
            return False  # being replaced, or deleted: the mapped file is still valid


def read_header(path: Path) -> Header:
    """Read the header of a precomputed file.

    Raises: PrecomputedFileError: as for `PrecomputedFile.open`.
    """
    header, _, handle = _opened(path)
    os.close(handle)
    return header


def identity_of(stat: os.stat_result) -> tuple[int, ...]:
    """Identity of a file, which a later one at the same path does not have."""
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size


def _opened(path: Path) -> tuple[Header, tuple[int, ...], int]:
    """The checked header, the file's identity, and the open file."""
    try:
        check_regular(path)
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise PrecomputedFileError(f"{path} cannot be opened: {error.strerror or error}") from None
    try:
        stat = os.fstat(handle)
        try:
            head = os.pread(handle, max_head_bytes(), 0)
        except OSError as error:
            raise PrecomputedFileError(f"{path} cannot be read: {error.strerror or error}") from None
        header: Header = unpacked(MAGIC, head, path, Header)
        if stat.st_size != header.file_bytes:
            raise PrecomputedFileError(
                f"{path} has {stat.st_size} bytes, its header says {header.file_bytes}: copy it again, or "
                "run `hopline batch` again"
            )
        begin = min((section.offset for section in header.sections), default=PAGE)
        planned = header.plan.sections(begin)
        stored = [(each.name, each.dtype, each.shape, each.offset) for each in header.sections]
        end = max((each.offset + each.num_bytes for each in header.sections), default=0)
        if (
            stored != [(each.name, each.dtype, each.shape, each.offset) for each in planned]
            or end > stat.st_size
        ):
            raise PrecomputedFileError(f"{path} is damaged: its sections do not fit its header")
    except BaseException:
        os.close(handle)
        raise
    return header, identity_of(stat), handle


def _view(pages: NDArray[np.uint8], section: Section) -> Any:
    end = section.offset + section.num_bytes
    if section.num_bytes == 0:
        empty: AnyArray = np.empty(section.shape, section.dtype)
        return empty
    return pages[section.offset : end].view(section.dtype).reshape(section.shape)
