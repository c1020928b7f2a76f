"""Pages that take seconds to play, and their texts when `scripts/test --all` last played all of them.

A slow page whose text has not changed since is left to the check of a release. The help of commands that it
names counts as its text: a new or renamed option plays the slow pages that may use it.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("played.json")
COMMANDS = ("docs/cli.md", "packages/mesh/docs/cli.md")
SLOW = (
    "docs/guides/distill.md",
    "docs/guides/drift.md",
    "docs/guides/generative-models.md",
    "docs/guides/graphs-from-files.md",
    "docs/guides/heterogeneous.md",
    "docs/guides/hybrid.md",
    "docs/guides/large-graphs.md",
    "docs/guides/link-prediction.md",
    "docs/guides/migrate.md",
    "docs/guides/pipelines.md",
    "docs/guides/prediction-log.md",
    "docs/guides/quantize.md",
    "docs/guides/score-edges.md",
    "docs/guides/score-graphs.md",
    "docs/guides/sizing.md",
    "docs/guides/tables-to-answers.md",
    "docs/guides/time-travel.md",
    "packages/mesh/docs/simulate.md",
)


def digest(page: str, root: Path = ROOT) -> str:
    """Hash of a page and of the help of commands that it names; `page` is relative to the root."""
    text = (root / page).read_text()
    parts = [text]
    for each in COMMANDS:
        for section in re.split("^(?=### )", (root / each).read_text(), flags=re.MULTILINE)[1:]:
            command = section.partition("\n")[0].removeprefix("### ")
            if re.search(rf"{re.escape(command)}\b", text):
                parts.append(section)
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def unchanged(root: Path = ROOT, record: Path = RECORD) -> set[str]:
    """Slow pages that were played as they are now."""
    known = json.loads(record.read_text()) if record.exists() else {}
    return {page for page in SLOW if known.get(page) == digest(page, root)}


if __name__ == "__main__":
    RECORD.write_text(json.dumps({page: digest(page) for page in SLOW}, indent=1) + "\n")
