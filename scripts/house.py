#!/usr/bin/env python3
"""Measure the house: lines by folder, files with one importer, repeated names, circles, wide functions.

    scripts/house.py [--list]    # --list names what is counted

Prints a table for each distribution, and last one JSON object. `tests/test_architecture.py` holds the lines
of each top folder to a budget.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tokenize
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import networkx

ROOT = Path(__file__).resolve().parent.parent
#: Distribution -> folder of its package; those of `packages/` follow the server's.
DISTRIBUTIONS = {
    package.name.replace("_", "-"): package
    for source in (ROOT / "src", *sorted(ROOT.glob("packages/*/src")))
    for package in sorted(source.iterdir())
    if (package / "__init__.py").exists()
}
#: Arguments of a function; more of them take a value object.
WIDE = 8
#: Lines below which a file needs a second importer.
SHORT = 150


@dataclass(frozen=True)
class Source:
    """One Python file of a distribution."""

    package: Path
    path: Path

    @cached_property
    def text(self) -> str:
        """The file's content."""
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return ast.parse(self.text)

    @property
    def folder(self) -> str:
        """The top folder, or "(top)" for files of the package itself."""
        parts = self.path.relative_to(self.package).parts
        return parts[0] if len(parts) > 1 else "(top)"

    @property
    def module(self) -> str:
        """The dotted name."""
        name = ".".join(self.path.relative_to(self.package.parent).with_suffix("").parts)
        return name.removesuffix(".__init__")

    @property
    def num_lines(self) -> int:
        """All lines."""
        return self.text.count("\n")

    @cached_property
    def num_code_lines(self) -> int:
        """Lines that hold code: no blank lines, comments or docstrings."""
        skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in (*skipped, tokenize.ENDMARKER):
                lines.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self.tree):
            constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if constant and isinstance(node.value.value, str):
                lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return len(lines)


@cache
def sources(package: Path) -> list[Source]:
    """Every Python file of a package, in order of its path; files are parsed once."""
    return [Source(package, path) for path in sorted(package.rglob("*.py"))]


def lines_by_folder(files: list[Source]) -> dict[str, int]:
    """Top folder -> lines."""
    counts: Counter[str] = Counter()
    for file in files:
        counts[file.folder] += file.num_lines
    return dict(counts)


def import_graph(files: list[Source]) -> networkx.DiGraph:
    """An edge from each module to each module of the same package that it imports, for types too."""
    modules = {file.module for file in files}
    graph = networkx.DiGraph()
    graph.add_nodes_from(modules)
    for file in files:
        for node in ast.walk(file.tree):
            names: set[str] = set()
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                inside = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                names = {full if full in modules else node.module for full in inside.values()}
            graph.add_edges_from((file.module, name) for name in names & modules if name != file.module)
    return graph


def single_importers(files: list[Source], graph: networkx.DiGraph) -> list[str]:
    """Modules that exactly one other module imports."""
    return sorted(
        file.module
        for file in files
        if file.path.name not in ("__init__.py", "__main__.py") and graph.in_degree(file.module) == 1
    )


def short_single_importers(files: list[Source], graph: networkx.DiGraph) -> list[str]:
    """Modules below `SHORT` lines that exactly one other module imports: most belong into that one."""
    lines = {file.module: file.num_lines for file in files}
    return [module for module in single_importers(files, graph) if lines[module] < SHORT]


def repeated_classes(files: list[Source]) -> dict[str, list[str]]:
    """Public class name -> modules, for names that more than one module defines."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for node in file.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(file.module)
    return {name: modules for name, modules in sorted(found.items()) if len(modules) > 1}


def circles(graph: networkx.DiGraph) -> list[list[str]]:
    """Groups of modules that import each other."""
    return [sorted(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1]


def wide_functions(files: list[Source]) -> list[str]:
    """Functions of more than `WIDE` arguments, without `self` and `cls`."""
    found = []
    for file in files:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = [
                    each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                ]
                if len(set(names) - {"self", "cls"}) > WIDE:
                    found.append(f"{file.module}:{node.name}")
    return found


def main() -> int:
    """Returns: 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="name what is counted")
    args = parser.parse_args()
    result = {}
    for name, package in DISTRIBUTIONS.items():
        files = sources(package)
        graph = import_graph(files)
        lists = {
            "files_with_one_importer": single_importers(files, graph),
            "short_files_with_one_importer": short_single_importers(files, graph),
            "repeated_class_names": list(repeated_classes(files)),
            "circles": [" ~ ".join(circle) for circle in circles(graph)],
            "wide_functions": wide_functions(files),
        }
        print(f"\n{name}\n  {'folder':<16}{'files':>6}{'lines':>8}{'code':>8}")
        per_folder: dict[str, list[Source]] = defaultdict(list)
        for file in files:
            per_folder[file.folder].append(file)
        for folder, members in sorted(
            per_folder.items(), key=lambda each: -sum(f.num_lines for f in each[1])
        ):
            numbers = (
                len(members),
                sum(f.num_lines for f in members),
                sum(f.num_code_lines for f in members),
            )
            print(f"  {folder:<16}{numbers[0]:>6}{numbers[1]:>8}{numbers[2]:>8}")
        result[name] = {
            "files": len(files),
            "lines": sum(file.num_lines for file in files),
            "code_lines": sum(file.num_code_lines for file in files),
            **{key: len(found) for key, found in lists.items()},
        }
        for key, value in result[name].items():
            print(f"  {key.replace('_', ' ')}: {value}")
            for each in lists.get(key, ()) if args.list else ():
                print(f"      {each}")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
