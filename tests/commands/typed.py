"""A command line as it is typed, errors included, in this process."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from unittest import mock

from hopline.cli import main


@dataclass(frozen=True)
class Typed:
    """What came of a command: its exit code, and what it wrote."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both streams."""
        return self.stdout + self.stderr


def typed(*words: object) -> Typed:
    """Run `hopline` with these words."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    line = ["hopline", *map(str, words)]
    code: object = 0
    with (
        mock.patch.object(sys, "argv", line),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return Typed(int(code or 0), *texts)  # type: ignore[call-overload]
