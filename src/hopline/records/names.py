"""Names of the prediction log's files, with their time, writer and format.

    predictions-20261019T101502.123456Z-w0-4711.jsonl.part     being written (or left by a killed process)
    predictions-20261019T101502.123456Z-w0-4711.jsonl          finished; or .jsonl.gz, .parquet
    predictions-20261019T101502.123456Z-w0-4711.parquet.draft  being converted

The time is that of the first entry, so that names sort by time; worker and process id keep writers apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

PART, DRAFT = ".part", ".draft"
JOURNAL = ".jsonl"
#: Formats of finished files, best to read first: a crash may leave two formats of one file.
FORMS = (".parquet", ".jsonl.gz", JOURNAL, JOURNAL + PART)

_NAME = re.compile(
    r"(predictions-(\d{8}T\d{6}\.\d{6})Z-w\d+-\d+(?:-\d+)?)(\.jsonl|\.jsonl\.gz|\.parquet|\.jsonl\.part)"
)
_TIME = "%Y%m%dT%H%M%S.%f"


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of a log.

    Attributes:
        stem: its name without the format.
        form: one of `FORMS`.
        begins: time of the first entry.
    """

    path: Path
    stem: str
    form: str
    begins: float

    @property
    def is_finished(self) -> bool:
        """True if the file is no longer written to."""
        return self.form != JOURNAL + PART


def stem_of(begins: float, worker: int, pid: int, number: int = 0) -> str:
    """The stem of a new file; `number` distinguishes files of one microsecond."""
    time = datetime.fromtimestamp(begins, UTC).strftime(_TIME)
    return f"predictions-{time}Z-w{worker}-{pid}{f'-{number}' if number else ''}"


def log_file(path: Path) -> LogFile | None:
    """The log file at a path, None if it is not a file of a log."""
    found = _NAME.fullmatch(path.name)
    if found is None:
        return None
    begins = datetime.strptime(found[2], _TIME).replace(tzinfo=UTC).timestamp()
    return LogFile(path, found[1], found[3], begins)


def log_files(folder: Path) -> list[LogFile]:
    """All files of a folder's log, oldest first.

    Raises: OSError: the folder cannot be read.
    """
    found = [known for path in folder.iterdir() if (known := log_file(path)) is not None]
    return sorted(found, key=lambda file: (file.begins, file.path.name))
