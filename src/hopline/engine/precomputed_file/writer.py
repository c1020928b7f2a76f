"""Writes a precomputed file: rows in any order, all of them visible together after `commit`.

The draft is a hidden file in the target folder, and is locked by its writer. A restarted run finds the
draft of a killed one: it holds the rows up to the last `checkpoint`.
"""

from __future__ import annotations

import contextlib
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
from hopline.files import lock, publish_file
from hopline.graph import digest
from hopline.types import AnyArray, FloatArray, IdArray

_COPY_BYTES = 8 << 20


class Draft(msgspec.Struct, frozen=True):
    """The header of an unfinished file.

    Attributes:
        run: name of the run whose later attempts may continue it; "" for none.
        num_done: rows [0, n) that are on the disk.
    """

    plan: PrecomputedPlan
    run: str
    num_done: int = 0


class PrecomputedWriter:
    """A precomputed file that is being written.

    Args:
        path: the final path; an existing file is replaced at `commit`.
        plan: what the file is about.
        run: an attempt continues the draft of a killed one with the same `run` and `plan`; "" starts again.
        clock_ms: ms since the epoch, for `computed_at`.

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
            is_alone = lock(self._handle, wait=False)
        except OSError:  # a file system without locks
            is_alone = False
        if not is_alone:
            raise PrecomputedFileError(
                f"{self.path} is being written by another run; wait until that run ends"
            )
        try:
            is_ours = os.path.samestat(os.fstat(self._handle), os.stat(self._draft))
        except FileNotFoundError:
            is_ours = False
        if not is_ours:  # the other run ended between both steps: the open file is its finished file
            raise PrecomputedFileError(f"{self.path} was written by another run just now; start again")
        if self._run and os.fstat(self._handle).st_size == self._file_bytes:
            with contextlib.suppress(PrecomputedFileError):  # of another run, or incomplete: start again
                head = os.pread(self._handle, self._begin, 0)
                found: Draft = unpacked(DRAFT_MAGIC, head, self._draft, Draft)
                if (found.plan, found.run) == (self.plan, self._run):
                    self.num_done = found.num_done
                    return
        with self._writing():
            os.ftruncate(self._handle, 0)
            # Reserve space for the whole file now: a full disk is reported before anything is computed.
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
        """Write rows [begin, begin + n); ranges come in any order, and repeat where they are recomputed.

        Args:
            state: float32 [n, d]. logits: float32 [n, c], where the plan has an output_dim.
            ids: uint64 [n], see `identity.py`; without them another snapshot cannot use the file.
            computed_at: int64 [n] or one value for all rows: ms since the epoch, above 0; None is now.

        Raises:
            ValueError: shapes do not match the plan.
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
            raise ValueError("logits must be given if, and only if, the plan has an output_dim")
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
        """Copy the rows of an older file, for the nodes that both files have.

        Raises: PrecomputedFileError: the older file has rows of other widths.
        """
        theirs = base.header.plan
        if (theirs.state_dim, theirs.output_dim) != (self.plan.state_dim, self.plan.output_dim):
            raise PrecomputedFileError(
                f"{base.path} has rows of {theirs.state_dim} and {theirs.output_dim} columns; this model "
                f"has {self.plan.state_dim} and {self.plan.output_dim}"
            )
        n = min(theirs.num_nodes, self.plan.num_nodes)
        for name, section in self._sections.items():
            rows = getattr(base, name)[:n]
            self._put(section.offset, digest.bytes_of(np.ascontiguousarray(rows)))

    def checkpoint(self, num_done: int) -> None:
        """Flush written rows to the disk, and record that rows [0, num_done) need not be written again.

        Raises: PrecomputedFileError: the disk failed.
        """
        with self._writing():
            os.fdatasync(self._handle)  # the rows first, then the record that they exist
        page = packed(DRAFT_MAGIC, Draft(self.plan, self._run, num_done))
        self._put(0, page)
        with self._writing():
            os.fdatasync(self._handle)

    def commit(self) -> Header:
        """Make the file durable, then visible under its path, in one step.

        Raises: PrecomputedFileError: the disk failed; nothing has changed at the path.
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
        """Stop writing; the path is unchanged.

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
        """Abort, unless `commit` was called."""
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
    """Bytes of the finished header; they do not depend on anything that is known only later."""
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
