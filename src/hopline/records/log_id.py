"""Which log a folder holds: a name that the server which writes it tells, too.

So that nobody asks a server again what it is writing down just now: each answer would be a new entry. A
folder's name would not do, since a server may see it under another path.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

_FILE = "log.id"


def made_id(folder: Path) -> str:
    """The id of a folder's log, made by the first caller; "" where it cannot be written."""
    with contextlib.suppress(OSError):
        if not id_of(folder):
            draft = folder / f".{_FILE}.{secrets.token_hex(4)}"
            draft.touch()
            # A copy of the folder is another log: its file has another inode.
            draft.write_text(f"{secrets.token_hex(16)} {draft.stat().st_ino}\n")
            with contextlib.suppress(FileExistsError):
                if not (folder / _FILE).exists():
                    os.link(draft, folder / _FILE)  # one of several workers is the first
                    draft.unlink()
            if draft.exists():
                if not id_of(folder):  # a copy's
                    os.replace(draft, folder / _FILE)
                else:
                    draft.unlink()
    return id_of(folder)


def id_of(path: Path) -> str:
    """The id of the log that a folder, or the folder of a file, holds; "" where it has none."""
    file = (path if path.is_dir() else path.parent) / _FILE
    try:
        found, _, inode = file.read_text().partition(" ")
        return found if inode.strip() == str(file.stat().st_ino) else ""
    except (OSError, UnicodeDecodeError):
        return ""
