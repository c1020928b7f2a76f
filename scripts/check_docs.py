#!/usr/bin/env python3
"""Check that README.md and docs/ say what the code does; with --write, renew the generated tables.

Checked: settings, error classes with their codes, commands and options, HTTP routes, gRPC methods and
metrics are all there; links and anchors lead somewhere; Python blocks parse and are tagged. Prints what
is missing and exits with 1. Imports neither torch nor any model runtime.

A generated table stands between `<!-- name:start -->` and `<!-- name:end -->`. A Python block is tagged
`python` (tests/docs runs it) or `py`.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HTTP_SOURCE = ROOT / "src" / "hopline" / "transports" / "http.py"
SITE = ROOT / "zensical.toml"
MESH_SOURCE = ROOT / "src" / "hopline" / "mesh" / "out" / "http.py"

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_PUBLIC = "docs/index.md"


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block.

    Attributes:
        info: the words after the fence.
        line: number of its first line of text, from 1.
    """

    info: str
    text: str
    line: int


def pages() -> dict[str, Path]:
    """Every page by its path from the root."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    files += sorted((ROOT / "docs").rglob("*.md"))
    return {file.relative_to(ROOT).as_posix(): file for file in files}


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found, info, first = [], None, 0
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if fence is None:
            lines.append(line)
        elif info is None:
            info, lines, first = fence["info"].strip(), [], number + 1
        else:
            found.append(Block(info, "\n".join(lines) + "\n", first))
            info = None
    return found


def prose(text: str) -> str:
    """A page without its fenced blocks."""
    kept, inside = [], False
    for line in text.splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    found: set[str] = set()
    for line in prose(text).splitlines():
        heading = re.match(r"#{1,6} +(.*)", line)
        if heading is None:
            continue
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "").strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number, plain = 0, slug
        while slug in found:
            number += 1
            slug = f"{plain}-{number}"
        found.add(slug)
    return found


# What must be there


def settings_table() -> str:
    """Every setting, from `hopline.config.schema`."""
    from hopline.config.reader import config_table

    lines = ["| setting | type | default | what it does |", "|---|---|---|---|"]
    for row in config_table():
        kind = row.type.replace("|", "\\|")
        help_text = row.help.replace("<", "&lt;")
        lines.append(f"| `{row.path}` | {kind} | {_shown(row.path, row.default)} | {help_text} |")
    return "\n".join(lines)


def mesh_settings_table() -> str:
    """Every setting of `hopline mesh watch`."""
    from hopline.mesh.settings import settings_table as rows

    lines = ["| setting | environment | type | default | what it does |", "|---|---|---|---|---|"]
    for row in rows():
        kind = row.type.replace("|", "\\|")
        lines.append(
            f"| `{row.path}` | `{row.env}` | {kind} | {_shown(row.path, row.default)} | {row.help} |"
        )
    return "\n".join(lines)


def limits_table() -> str:
    """Every key of a model's serving.toml."""
    from hopline.rollout.limits import limits_table as rows

    lines = ["| key | type | default | what it does |", "|---|---|---|---|"]
    for row in rows():
        lines.append(
            f"| `{row.name}` | {row.type.replace('|', chr(92) + '|')} | {_shown(row.name, row.default)} "
            f"| {row.help} |"
        )
    return "\n".join(lines)


def errors_table() -> str:
    """Every error class with its code, HTTP status and gRPC code."""
    from hopline import errors
    from hopline.transports.grpc_errors import GRPC_CODE
    from hopline.transports.http_errors import HTTP_STATUS

    def walk(kind: type[errors.HoplineError]) -> Iterator[type[errors.HoplineError]]:
        yield kind
        for child in (sub for sub in kind.__subclasses__() if sub.__module__ == errors.__name__):
            yield from walk(child)

    lines = ["| error | code | HTTP | gRPC | means |", "|---|---|---|---|---|"]
    for kind in walk(errors.HoplineError):
        status = next(HTTP_STATUS[base] for base in kind.__mro__ if base in HTTP_STATUS)
        code = next(GRPC_CODE[base] for base in kind.__mro__ if base in GRPC_CODE).name
        meaning = (kind.__doc__ or "").splitlines()[0].rstrip(".")
        lines.append(f"| `{kind.__name__}` | `{kind.code}` | {status} | `{code}` | {meaning} |")
    return "\n".join(lines)


def commands_table() -> str:
    """Every command with its arguments and options."""
    parts = []
    for name, command in _commands():
        lines = [f"### {name}", "", (command.help or "").splitlines()[0], ""]
        lines += ["| option | what it is |", "|---|---|"]
        for parameter in command.params:
            shown = ", ".join(f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts))
            if parameter.param_type_name == "argument":
                shown = f"`{parameter.metavar or parameter.name.upper()}`"
            help_text = (getattr(parameter, "help", None) or "").replace("|", "\\|").replace("<", "&lt;")
            help_text += _shown_option(getattr(parameter, "default", None))
            required = " Required." if parameter.required else ""
            lines.append(f"| {shown} | {help_text}{required} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def routes(source: str) -> list[str]:
    """Every path that `HttpApp` resolves, from the patterns of its `_find` functions."""
    functions = {
        node.name: node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)
    }
    found: list[str] = []
    for elements in _cases(functions["_find"]):
        if not elements or not isinstance(elements[-1], ast.MatchStar):
            found += _paths(elements)
            continue
        (prefix,) = _paths(elements[:-1])
        version = prefix.split("/")[1]
        for rest in _rests(functions[f"_find_{version}"]):
            found += [prefix + rest, f"{prefix}/versions/<version>{rest}"]
    return found


def _cases(function: ast.FunctionDef) -> Iterator[list[ast.pattern]]:
    for node in ast.walk(function):
        if isinstance(node, ast.match_case) and isinstance(node.pattern, ast.MatchSequence):
            yield node.pattern.patterns


def _paths(elements: list[ast.pattern]) -> list[str]:
    """`["v2", "models", model]` -> ["/v2/models/<model>"]; alternatives make several."""
    found = [""]
    for element in elements:
        names = []
        for part in ast.walk(element):
            if isinstance(part, ast.MatchValue) and isinstance(part.value, ast.Constant):
                names.append(str(part.value.value))
        if not names and isinstance(element, ast.MatchAs):
            names = [f"<{element.name}>"]
        found = [f"{path}/{name}" for path in found for name in names]
    return found


def _rests(function: ast.FunctionDef) -> list[str]:
    """What may follow `/models/<model>`: from cases, a table of names, or `rest == [...]`."""
    found = [path for elements in _cases(function) for path in _paths(elements)]
    for node in ast.walk(function):
        if isinstance(node, ast.Dict):
            keys = [str(key.value) for key in node.keys if isinstance(key, ast.Constant)]
            found += [f"/{key}" if key else "" for key in keys]
        elif isinstance(node, ast.Compare) and isinstance(node.comparators[0], ast.List):
            names = node.comparators[0].elts
            found += [f"/{ast.literal_eval(name)}" for name in names]
    return found


def grpc_methods() -> list[str]:
    """Every method of every gRPC service."""
    from hopline.mesh.out.grpc import MESH
    from hopline.transports.grpc import HEALTH, INFERENCE
    from hopline.transports.proto import methods

    return [method.name for service in (INFERENCE, HEALTH, MESH) for method in methods(service)]


def metric_names() -> list[str]:
    """Every metric of a server, and of a mesh watch."""
    from hopline.mesh.out.metrics import MeshMetrics
    from hopline.observe.metrics import Metrics

    return [*Metrics()._families, *MeshMetrics().names()]


def _commands() -> Iterator[tuple[str, Any]]:
    """("hopline graph build", click command) of every leaf command."""
    import typer.main

    from hopline import cli

    def leaves(prefix: str, command: Any) -> Iterator[tuple[str, Any]]:
        children = getattr(command, "commands", None)
        if not children:
            yield prefix, command
            return
        for name, child in children.items():
            yield from leaves(f"{prefix} {name}", child)

    for name in cli.COMMANDS:
        group: Any = typer.main.get_command(cli.build_app([name]))
        yield from leaves(f"hopline {name}", group.commands[name])


def _shown(path: str, default: Any) -> str:
    if path.endswith("_bytes") and default and default % 2**20 == 0:
        return f"`{default // 2**20} MiB`"
    if default is None:
        return "–"
    if default in ("", ()):
        return "empty"
    return f"`{default}`"


def _shown_option(default: Any) -> str:
    """A sentence on an option's default; nothing where that is a flag, or no value at all."""
    if isinstance(default, Enum):
        default = default.value
    if isinstance(default, bool) or not isinstance(default, str | int | float | Path) or default == "":
        return ""
    return f" Default: {default}."


#: page -> generated tables in it.
GENERATED: dict[str, dict[str, Callable[[], str]]] = {
    "docs/configuration.md": {"settings": settings_table, "mesh-settings": mesh_settings_table},
    "docs/bad-input.md": {"errors": errors_table},
    "docs/cli.md": {"commands": commands_table},
    "docs/guides/isolation.md": {"limits": limits_table},
}


# Checks: each yields sentences


def check_generated(*, write: bool) -> Iterator[str]:
    """Generated tables are what the code says."""
    for page, tables in GENERATED.items():
        file = ROOT / page
        text = file.read_text()
        for name, make in tables.items():
            pattern = re.compile(rf"(<!-- {name}:start -->\n)(.*?)(<!-- {name}:end -->)", re.DOTALL)
            found = pattern.search(text)
            if found is None:
                yield f"{page}: no <!-- {name}:start --> … <!-- {name}:end -->"
                continue
            wanted = f"\n{make()}\n\n"
            if found[2] == wanted:
                continue
            if write:
                text = text[: found.start(2)] + wanted + text[found.end(2) :]
                file.write_text(text)
            else:
                yield f"{page}: the {name} table is not current; run scripts/check_docs.py --write"


def check_mentions(texts: dict[str, str]) -> Iterator[str]:
    """Names of the interfaces stand where people look for them."""
    import hopline

    for name in hopline.__all__:
        if f"`hopline.{name}`" not in texts[_PUBLIC]:
            yield f"{_PUBLIC}: public name `hopline.{name}` is not documented"
    mesh = [path for path in routes(MESH_SOURCE.read_text()) if path != "/page/<name>"]
    for path in (*routes(HTTP_SOURCE.read_text()), *mesh):
        # `/versions/<version>` is said once for all routes below a model.
        if "/versions/<version>" not in path and f"`{path}`" not in texts["docs/http-api.md"]:
            yield f"docs/http-api.md: route `{path}` is not documented"
    for method in grpc_methods():
        if f"`{method}`" not in texts["docs/grpc-api.md"]:
            yield f"docs/grpc-api.md: method `{method}` is not documented"
    for metric in metric_names():
        if f"`{metric}`" not in texts["docs/operations.md"]:
            yield f"docs/operations.md: metric `{metric}` is not documented"


def check_links(texts: dict[str, str]) -> Iterator[str]:
    """Links inside the repository lead to files and headings."""
    for page, text in texts.items():
        for link in _LINK.finditer(prose(text)):
            target = link["target"]
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
            if not file.exists():
                yield f"{page}: link to {target}: there is no such file"
            elif anchor and anchor not in anchors(file.read_text()):
                yield f"{page}: link to {target}: there is no such heading"


def check_reachable(texts: dict[str, str]) -> Iterator[str]:
    """Every page of docs/ is linked from the index."""
    index = ROOT / _PUBLIC
    linked = {
        (index.parent / link["target"].partition("#")[0]).resolve()
        for link in _LINK.finditer(texts[_PUBLIC])
    }
    for page in texts:
        if page.startswith("docs/") and page != _PUBLIC and (ROOT / page).resolve() not in linked:
            yield f"{_PUBLIC}: {page} is not linked"


def check_nav(texts: dict[str, str]) -> Iterator[str]:
    """Every page of docs/ is in the site's navigation, and every page of that is there."""

    def listed(items: list[Any]) -> Iterator[str]:
        for item in items:
            if isinstance(item, str):
                yield f"docs/{item}"
                continue
            for below in item.values():
                yield from listed(below if isinstance(below, list) else [below])

    nav = list(listed(tomllib.loads(SITE.read_text())["project"]["nav"]))
    wanted = {page for page in texts if page.startswith("docs/")}
    for page in sorted(wanted - set(nav)):
        yield f"{SITE.name}: {page} is not in nav"
    for page in sorted(set(nav) - wanted):
        yield f"{SITE.name}: nav has {page}, which is not there"
    for page in sorted(page for page in set(nav) if nav.count(page) > 1):
        yield f"{SITE.name}: nav has {page} more than once"


def check_blocks(texts: dict[str, str]) -> Iterator[str]:
    """Python blocks parse and say whether tests run them."""
    for page, text in texts.items():
        if text.count("```") % 2:
            yield f"{page}: a block is not closed"
        for block in blocks(text):
            if " " in block.info:
                yield f"{page}:{block.line}: tag {block.info!r}: one word is right"
            if not block.info.startswith("py"):
                continue
            if block.info not in ("python", "py"):
                yield f"{page}:{block.line}: tag {block.info!r}; `python` or `py` is right"
            try:
                ast.parse(block.text)
            except SyntaxError as error:
                yield f"{page}:{block.line + (error.lineno or 1) - 1}: not Python: {error.msg}"


def check_commands(texts: dict[str, str]) -> Iterator[str]:
    """Commands in bash blocks exist and have the options that they are given."""
    known = dict(_commands())
    options = {
        name: {option for part in command.params for option in (*part.opts, *part.secondary_opts)}
        for name, command in known.items()
    }
    for page, text in texts.items():
        for block in blocks(text):
            for line in block.text.replace("\\\n", " ").splitlines():
                if block.info not in ("bash", "sh") or not line.startswith("hopline "):
                    continue
                name = next((each for each in known if f"{line} ".startswith(f"{each} ")), None)
                if name is None:
                    yield f"{page}:{block.line}: no such command: {line}"
                    continue
                for word in line.split():
                    if word.startswith("--") and word.partition("=")[0] not in options[name]:
                        yield f"{page}:{block.line}: {name} has no option {word}"


def problems(*, write: bool = False) -> list[str]:
    """Everything that is wrong, one sentence each."""
    found = list(check_generated(write=write))
    texts = {name: file.read_text() for name, file in pages().items()}
    for check in (check_mentions, check_links, check_reachable, check_nav, check_blocks, check_commands):
        found += check(texts)
    return found


def main() -> int:
    """Check, print, and say by the exit code whether all is well."""
    arguments = sys.argv[1:]
    if arguments not in ([], ["--write"]):
        print(f"usage: {Path(sys.argv[0]).name} [--write]", file=sys.stderr)
        return 2
    found = problems(write=bool(arguments))
    for problem in found:
        print(problem)
    print(f"docs: {len(found)} problems" if found else f"docs: {len(pages())} pages are in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
