"""A disk that is soon full."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A folder on a disk of 4 MiB: a file system of its own where this process may mount one, else a limit
    on the size of files, which refuses writes in the same way."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
        self.mounted = os.geteuid() == 0 and not subprocess.call(mount, stderr=subprocess.DEVNULL)
        if not self.mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**22, self.limits[1]))

    def grow(self) -> None:
        """There is room again."""
        if self.mounted:
            subprocess.check_call(["mount", "-o", "remount,size=64m", str(self.folder)])
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, self.limits)

    def close(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.limits)
        if self.mounted:
            subprocess.check_call(["umount", "-l", str(self.folder)])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "disk")
    try:
        yield disk
    finally:
        disk.close()
