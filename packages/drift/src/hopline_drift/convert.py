"""A process that converts one finished file to Parquet, and then deletes it.

The writer's finisher starts it and is the only one that waits for it. It runs with a low priority.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hopline.files import lock, publish_file
from hopline.process.time_slice import lower_priority
from hopline.records.names import DRAFT
from hopline_drift.parquet import write_parquet


def main() -> None:
    """`source target` on the command line; the exit code is 0 if nothing is left to do."""
    source, target = map(Path, sys.argv[1:3])
    lower_priority(19)
    try:
        convert(source, target)
    except (OSError, ValueError) as error:
        sys.exit(str(error))


def convert(source: Path, target: Path) -> bool:
    """Write `target` from a .jsonl file and delete the source.

    Returns: False if another process does it or has done it.
    Raises: OSError: writing failed; `source` stays.
    """
    try:
        file = source.open("rb")
    except FileNotFoundError:
        return False
    draft = target.with_name(target.name + DRAFT)
    with file:
        try:
            if not lock(file.fileno(), wait=False):
                return False
        except OSError:  # a file system without locks
            return False
        try:
            # Entries are about people: like the source, only its user may read it.
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
            draft.chmod(0o600)
            write_parquet(source, draft)
            publish_file(draft, target, durable=True)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        source.unlink(missing_ok=True)
    return True


if __name__ == "__main__":
    main()
