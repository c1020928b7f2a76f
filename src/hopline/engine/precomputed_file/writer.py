"""Writes a precomputed file: rows in any order, visible together at the end.

The draft is a hidden file next to its place, and is locked by its writer. A run that was killed finds its
draft again: it holds the rows up to the last `checkpoint`.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.engine.precomputed_file.header import (
    DRAFT_MAGIC,
    MAGIC,
    PAGE,
    Header,
    PrecomputedPlan,
    packed,
    unpacked,
)
from hopline.engine.precomputed_file.reader import PrecomputedFile
from hopline.errors import PrecomputedFileError
from hopline.files import publish_file
from hopline.graph import digest
from hopline.types import AnyArray, FloatArray, IdArray

_COPY_BYTES = 8 << 20


class Draft(msgspec.Struct, frozen=True):
    """What an unfinished table says of itself.

    Attributes:
        run: whose attempts may continue it; "" for none.
        num_done: rows [0, n) that are on the disk.
    """

    plan: PrecomputedPlan
    run: str
    num_done: int = 0


class PrecomputedWriter:
    """One table on its way.

    Args:
        path: of the finished file; an existing one is replaced at `commit`.
        plan: what it is about.
        run: an attempt continues an earlier one of the same `run` and `plan`; "" starts again.
        clock_ms: ms since the epoch, for stamps.

    Attributes:
        num_done: rows [0, n) that an earlier attempt has written to the disk.

    Raises:
        PrecomputedFileError: it cannot be written there, there is no room, or another run is writing it.
    """

    def __init__(self, path: Path, plan: PrecomputedPlan, run: str = "", clock_ms: Any = None) -> None:
        self.path = path
        self.plan = plan
        self.num_done = 0
        self._run = run
        self._clock_ms = clock_ms or (lambda: time.time_ns() // 1_000_000)
        self._draft = path.with_name(f".{path.name}.draft")
        self._begin = _head_bytes(plan)
        self._sections = {section.name: section for section in plan.sections(self._begin)}
        last = list(self._sections.values())[-1]
        self._file_bytes = -(-(last.offset + last.num_bytes) // PAGE) * PAGE
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self._draft, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._prepare()
        except BaseException:
            os.close(self._handle)
            raise

    def _prepare(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PrecomputedFileError(
                f"{self.path} is being written by another run; let that end"
            ) from None
        try:
            is_ours = os.path.samestat(os.fstat(self._handle), os.stat(self._draft))
        except FileNotFoundError:
            is_ours = False
        if not is_ours:  # the other run ended between both steps: what is open here is its finished table
            raise PrecomputedFileError(f"{self.path} was written by another run just now; begin again")
        if self._run and os.fstat(self._handle).st_size == self._file_bytes:
            with contextlib.suppress(PrecomputedFileError):  # of another run, or torn: start again
                head = os.pread(self._handle, self._begin, 0)
                found: Draft = unpacked(DRAFT_MAGIC, head, self._draft, Draft)
                if (found.plan, found.run) == (self.plan, self._run):
                    self.num_done = found.num_done
                    return
        with self._writing():
            os.ftruncate(self._handle, 0)
            # Allocate all of it now: a full disk is reported before anything is computed.
            os.posix_fallocate(self._handle, 0, self._file_bytes)
        self.checkpoint(0)

    def write(
        self,
        begin: int,
        state: FloatArray,
        logits: FloatArray | None = None,
        *,
        ids: NDArray[np.uint64] | None = None,
        computed_at: IdArray | int | None = None,
    ) -> None:
        """Write rows [begin, begin + n); ranges come in any order, and again where they are computed again.

        Args:
            state: float32 [n, d]. logits: float32 [n, c], where the plan has an output_dim.
            ids: uint64 [n], see `identity.py`; without them another snapshot cannot use the table.
            computed_at: int64 [n] or one value for all rows: ms since the epoch, above 0; None is now.

        Raises:
            ValueError: shapes that the plan does not have.
            PrecomputedFileError: the disk is full, or failed.
        """
        n = len(state)
        if computed_at is None or isinstance(computed_at, int):
            computed_at = np.full(n, self._clock_ms() if computed_at is None else computed_at, np.int64)
        columns: dict[str, AnyArray | None] = {
            "state": state,
            "logits": logits,
            "ids": ids,
            "computed_at": computed_at,
        }
        if begin < 0 or begin + n > self.plan.num_nodes:
            raise ValueError(f"rows {begin} to {begin + n} are not within {self.plan.num_nodes}")
        if (logits is None) != ("logits" not in self._sections):
            raise ValueError("logits are written where the plan has an output_dim, and only there")
        for name, rows in columns.items():
            if rows is None:
                continue
            section = self._sections[name]
            if rows.shape != (n, *section.shape[1:]):
                raise ValueError(f"{name} has shape {rows.shape}, not {(n, *section.shape[1:])}")
            data = np.ascontiguousarray(rows, section.dtype)
            width = data.nbytes // n if n else 0
            self._put(section.offset + begin * width, digest.bytes_of(data))

    def copy(self, base: PrecomputedFile) -> None:
        """Begin with the rows of an older table: those of the nodes that both have.

        Raises:
            PrecomputedFileError: the older one has rows of other widths.
        """
        theirs = base.header.plan
        if (theirs.state_dim, theirs.output_dim) != (self.plan.state_dim, self.plan.output_dim):
            raise PrecomputedFileError(
                f"{base.path} has rows of {theirs.state_dim} and {theirs.output_dim} columns, this model "
                f"{self.plan.state_dim} and {self.plan.output_dim}"
            )
        n = min(theirs.num_nodes, self.plan.num_nodes)
        for name, section in self._sections.items():
            rows = getattr(base, name)[:n]
            self._put(section.offset, digest.bytes_of(np.ascontiguousarray(rows)))

    def checkpoint(self, num_done: int) -> None:
        """Bring what was written to the disk, and note that rows [0, num_done) need not be written again.

        Raises:
            PrecomputedFileError: the disk failed.
        """
        with self._writing():
            os.fdatasync(self._handle)  # rows before the note that they are there
        page = packed(DRAFT_MAGIC, Draft(self.plan, self._run, num_done))
        self._put(0, page)
        with self._writing():
            os.fdatasync(self._handle)

    def commit(self) -> Header:
        """Make the table durable, then visible under its path, in one step.

        Raises:
            PrecomputedFileError: the disk failed; nothing has changed at the path.
        """
        pages = mmap.mmap(self._handle, self._file_bytes, access=mmap.ACCESS_READ)
        whole = np.frombuffer(pages, np.uint8)
        arrays = {
            name: whole[section.offset : section.offset + section.num_bytes]
            .view(section.dtype)
            .reshape(section.shape)
            for name, section in self._sections.items()
        }
        found = digest.digests(arrays)
        sections = tuple(
            msgspec.structs.replace(section, blake2b=found[name])
            for name, section in self._sections.items()
        )
        header = Header(self.plan, self._clock_ms(), sections, self._file_bytes)
        page = packed(MAGIC, header)
        assert len(page) <= self._begin
        del arrays, whole
        pages.close()
        with self._writing():
            os.fsync(self._handle)
        self._put(0, page)
        with self._writing():
            publish_file(self._draft, self.path, durable=True)
        self._close()
        return header

    def abort(self, *, keep: bool = False) -> None:
        """Give up; the path is unchanged.

        Args:
            keep: leave the draft to a later attempt of the same run.
        """
        if self._handle >= 0:
            if not keep:
                self._draft.unlink(missing_ok=True)
            self._close()

    def __enter__(self) -> PrecomputedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give up, unless committed."""
        self.abort()

    def _put(self, at: int, data: bytes | memoryview) -> None:
        view = memoryview(data)
        with self._writing():
            while view:
                done = os.pwrite(self._handle, view[:_COPY_BYTES], at)
                view, at = view[done:], at + done

    def _close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    @contextlib.contextmanager
    def _writing(self) -> Any:
        try:
            yield
        except OSError as error:
            raise PrecomputedFileError(
                f"{self._draft} cannot be written: {error.strerror or error}"
            ) from error


def _head_bytes(plan: PrecomputedPlan) -> int:
    """Bytes of the finished header, which hang on nothing that is found out later."""
    size = PAGE
    while True:
        sections = tuple(
            msgspec.structs.replace(section, blake2b="0" * 64, offset=section.offset + (1 << 60))
            for section in plan.sections(size)
        )
        widest = len(packed(MAGIC, Header(plan, 1 << 60, sections, 1 << 62)))
        if widest <= size:
            return size
        size = widest
