"""Names of the prediction log's files, with their time, writer and format; the id of the log in a folder.

The server that writes the log also reports its id. A replay can so refuse to query a server that writes the
same log: each answer would be a new entry. The folder's path is not enough, since a server may see it under
another path.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_FILE = "log.id"


def made_id(folder: Path) -> str:
    """The id of a folder's log, created by the first caller; "" if it cannot be written."""
    with contextlib.suppress(OSError):
        if not id_of(folder):
            draft = folder / f".{_FILE}.{secrets.token_hex(4)}"
            draft.touch()
            # A copy of the folder is another log: its file has a different inode.
            draft.write_text(f"{secrets.token_hex(16)} {draft.stat().st_ino}\n")
            with contextlib.suppress(FileExistsError):
                if not (folder / _FILE).exists():
                    os.link(draft, folder / _FILE)  # only one of several workers succeeds
                    draft.unlink()
            if draft.exists():
                if not id_of(folder):  # the id of a copied folder
                    os.replace(draft, folder / _FILE)
                else:
                    draft.unlink()
    return id_of(folder)


def id_of(path: Path) -> str:
    """The id of the log in a folder, or in the folder of a file; "" if it has none."""
    file = (path if path.is_dir() else path.parent) / _FILE
    try:
        found, _, inode = file.read_text().partition(" ")
        return found if inode.strip() == str(file.stat().st_ino) else ""
    except (OSError, UnicodeDecodeError):
        return ""


PART, DRAFT = ".part", ".draft"
JOURNAL = ".jsonl"
#: Formats of finished files, best to read first: a crash may leave two formats of one file.
FORMS = (".parquet", JOURNAL, JOURNAL + PART)

_NAME = re.compile(
    r"(predictions-(\d{8}T\d{6}\.\d{6})Z-w\d+-\d+(?:-\d+)?)(\.jsonl|\.parquet|\.jsonl\.part)"
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
