"""Pages that take seconds to play, and their texts when `scripts/test --all` last played all of them.

A slow page whose text has not changed since is left to the check of a release. The pages of commands count
as its text: they hold the help of every command, so that a new or renamed option plays all slow pages.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("played.json")
COMMANDS = ("docs/cli.md", "packages/mesh/docs/cli.md")
SLOW = (
    "docs/guides/distill.md",
    "docs/guides/drift.md",
    "docs/guides/generative-models.md",
)


def digest(page: str, root: Path = ROOT) -> str:
    """Hash of a page and of the pages of commands; `page` is relative to the root."""
    sums = hashlib.blake2b(digest_size=16)
    for each in (page, *COMMANDS):
        sums.update((root / each).read_bytes())
    return sums.hexdigest()


def unchanged(root: Path = ROOT, record: Path = RECORD) -> set[str]:
    """Slow pages that were played as they are now."""
    known = json.loads(record.read_text()) if record.exists() else {}
    return {page for page in SLOW if known.get(page) == digest(page, root)}


if __name__ == "__main__":
    RECORD.write_text(json.dumps({page: digest(page) for page in SLOW}, indent=1) + "\n")
