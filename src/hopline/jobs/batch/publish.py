"""Files that are there whole or not at all: sync, then rename."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hopline.graph.storage import put


def sync_file(path: Path) -> None:
    """Bring a file's (or folder's) content to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish_folder(draft: Path, folder: Path) -> None:
    """Rename a synced folder to its place; one that is there is exchanged in one step, then removed."""
    sync_file(draft)
    put(draft, folder)
    sync_file(folder.parent)
    shutil.rmtree(draft, ignore_errors=True)


def publish_file(draft: Path, path: Path) -> None:
    """Sync a file and rename it to its place, replacing what is there in one step."""
    sync_file(draft)
    draft.replace(path)
    sync_file(path.parent)
