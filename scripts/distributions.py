#!/usr/bin/env python3
"""Print the projects that `scripts/setup` installs, one a line: `./packages/mesh[test]`.

    scripts/distributions.py EXTRAS     # of hopline, with commas between

The server comes first. Of `packages/` follow what these extras name and what no extra of the server names.
A package gets the extras that it has too.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def project(folder: Path) -> dict:
    """The [project] table of a folder."""
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def named(extras: set[str]) -> set[str]:
    """Distributions of this repository that extras of the server name, also through other extras."""
    found: set[str] = set()
    for extra in extras:
        for requirement in project(ROOT).get("optional-dependencies", {}).get(extra, ()):
            name, inner = re.match(r"([\w-]+)(?:\[([^\]]*)\])?", requirement).groups()
            if name == "hopline":
                found |= named(set(re.split(r"\s*,\s*", inner)))
            elif name.startswith("hopline-"):
                found.add(name)
    return found


def projects(extras: set[str]) -> list[str]:
    """Arguments for `pip install --editable`."""
    wanted, optional = named(extras), named(set(project(ROOT)["optional-dependencies"]))
    found = [f".[{','.join(sorted(extras))}]"]
    for folder in sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml")):
        table = project(folder)
        if table["name"] in wanted or table["name"] not in optional:
            inner = sorted(extras & set(table.get("optional-dependencies", {})))
            found.append(f"./packages/{folder.name}" + (f"[{','.join(inner)}]" if inner else ""))
    return found


if __name__ == "__main__":
    print("\n".join(projects(set(sys.argv[1].split(",")))))
