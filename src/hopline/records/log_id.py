"""Identifies the log in a folder by an id, which the server that writes it also reports.

A replay can so refuse to query a server that writes the same log: each answer would be a new entry. The
folder's path is not enough, since a server may see it under another path.
"""

from __future__ import annotations

import contextlib
import os
import secrets
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
