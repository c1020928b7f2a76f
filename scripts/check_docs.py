#!/usr/bin/env python3
"""Check that the pages of all packages say what the code does; with --write, renew the generated tables.

Checked: settings, error classes with their codes, commands and options, HTTP routes, gRPC methods and
metrics are all there, and every module in the architecture; links and anchors lead somewhere; Python blocks
parse and are tagged. Prints what is missing and exits with 1. Imports neither torch nor any model runtime.

A generated table stands between `<!-- name:start -->` and `<!-- name:end -->`. A Python block is tagged
`python` (tests/docs runs it) or `py`.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import re
import sys
import tomllib
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "hopline"

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_PUBLIC = "docs/index.md"
_MODULES = "docs/architecture.md"
#: Page -> the parts of it that list the convolutions that are split.
_CONVOLUTIONS = {
    "docs/index.md": r"(?s)Models of .*? are\s+split",
    "docs/packaging.md": r"(?m)^\| (`\w+Conv`.*?) \|",
    _MODULES: r"(?m)^\| .* \| (\w+Conv\b.*) \|$",
}
_FOR_DEVELOPERS = (_MODULES, "docs/extending.md", "CONTRIBUTING.md", "docs/guides/store-failures.md")
#: Folder of pages -> the page that links to all of them; the site's description is beside the folder.
INDEXES = {
    "docs/": _PUBLIC,
    **{
        f"{docs.relative_to(ROOT)}/": f"{docs.relative_to(ROOT)}/index.md"
        for docs in sorted(ROOT.glob("packages/*/docs"))
    },
}


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
    files += sorted(ROOT.glob("packages/*/*.md"))
    for folder in INDEXES:
        files += sorted((ROOT / folder).rglob("*.md"))
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
        kind = _kind(row.type, row.bounds)
        help_text = row.help.replace("<", "&lt;")
        lines.append(f"| `{row.path}` | {kind} | {_shown(row.path, row.default)} | {help_text} |")
    return "\n".join(lines)


def mesh_settings_table() -> str:
    """Every setting of `hopline mesh watch`."""
    from hopline_mesh.settings import settings_table as rows

    lines = ["| setting | environment | type | default | what it does |", "|---|---|---|---|---|"]
    for row in rows():
        kind = _kind(row.type, row.bounds)
        lines.append(
            f"| `{row.path}` | `{row.env}` | {kind} | {_shown(row.path, row.default)} | {row.help} |"
        )
    return "\n".join(lines)


def limits_table() -> str:
    """Every key of a model's serving.toml."""
    from hopline.answering.limits import DEFAULTS, ModelLimits
    from hopline.config.setting import bounds_text, type_name

    hints = typing.get_type_hints(ModelLimits)
    lines = ["| key | type | default | what it does |", "|---|---|---|---|"]
    for item in dataclasses.fields(ModelLimits):
        kind = _kind(type_name(hints[item.name]), bounds_text(item))
        default = _shown(item.name, DEFAULTS.get(item.name, item.default))
        lines.append(f"| `{item.name}` | {kind} | {default} | {item.metadata['help']} |")
    return "\n".join(lines)


def fallbacks_table() -> str:
    """Every fallback that the answer of one model may name, in the order in which they are tried."""
    from hopline.engine.fallbacks import FALLBACKS

    return _fallbacks(FALLBACKS)


def pipeline_fallbacks_table() -> str:
    """Every fallback of the steps of a pipeline."""
    from hopline_pipelines.fallbacks import OF_STEPS

    return _fallbacks(OF_STEPS)


def _fallbacks(fallbacks: Iterable[Any]) -> str:
    lines = ["| label | the answer used | tried in |", "|---|---|---|"]
    for each in fallbacks:
        modules = ", ".join(f"`{module}`" for module in each.modules)
        lines.append(f"| `{each.name}` | {each.text} | {modules} |")
    return "\n".join(lines)


def event_fields_table() -> str:
    """The fields of events of a live graph, by operation."""
    from hopline.events.wire import FIELDS

    lines = ["| `op` | fields |", "|---|---|"]
    lines += [f"| `{op}` | {', '.join(f'`{name}`' for name in fields)} |" for op, fields in FIELDS.items()]
    return "\n".join(lines)


def errors_table() -> str:
    """Every error class of the server with its code, HTTP status and gRPC code."""
    from hopline.errors import HoplineError
    from hopline.transports.grpc_errors import GRPC_CODE
    from hopline.transports.http_errors import HTTP_STATUS

    return _errors(HoplineError, HTTP_STATUS, GRPC_CODE)


def mesh_errors_table() -> str:
    """Every error class of the mesh watch, likewise."""
    from hopline_mesh.errors import MeshError
    from hopline_mesh.out.error_tables import GRPC_CODE, HTTP_STATUS

    return _errors(MeshError, HTTP_STATUS, GRPC_CODE)


def _errors(root: type[Exception], statuses: Mapping[Any, int], codes: Mapping[Any, Any]) -> str:
    def walk(kind: type[Exception]) -> Iterator[type[Exception]]:
        yield kind
        for child in (sub for sub in kind.__subclasses__() if sub.__module__ == root.__module__):
            yield from walk(child)

    lines = ["| error | code | HTTP | gRPC | means |", "|---|---|---|---|---|"]
    for kind in walk(root):
        status = next(statuses[base] for base in kind.__mro__ if base in statuses)
        code = next(codes[base] for base in kind.__mro__ if base in codes).name
        meaning = (kind.__doc__ or "").splitlines()[0].rstrip(".")
        lines.append(f"| `{kind.__name__}` | `{kind.code}` | {status} | `{code}` | {meaning} |")
    return "\n".join(lines)


def commands_table() -> str:
    """Every command of the server's package and of its extras, with its arguments and options."""
    from hopline import cli

    extras = [name for name in cli.DOOR.packages if name != "mesh"]
    return _described([*cli.COMMANDS, *extras])


def mesh_commands_table() -> str:
    """Every command of `hopline mesh`, likewise."""
    return _described(["mesh"])


def _described(names: Iterable[str]) -> str:
    parts = []
    for name, command in _commands(names):
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


def routes() -> list[str]:
    """Every path of the server, as pages write it: `/v1/models/<model>`."""
    from hopline.transports.http_operations import all_operations

    paths = [path for each in all_operations() for path in each.paths]
    return [path.replace("{", "<").replace("}", ">") for path in dict.fromkeys(paths)]


def mesh_routes() -> list[str]:
    """Every path of the JSON API and the page of the mesh watch."""
    from hopline_mesh.out.board import Board
    from hopline_mesh.out.http import MeshHttp

    return [path.replace("{", "<").replace("}", ">") for path in MeshHttp(Board()).routes]


def _commands(names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """("hopline graph build", click command) of every leaf command below these."""
    import typer.main

    from hopline import cli

    def leaves(prefix: str, command: Any) -> Iterator[tuple[str, Any]]:
        children = getattr(command, "commands", None)
        if not children:
            yield prefix, command
            return
        for name, child in children.items():
            yield from leaves(f"{prefix} {name}", child)

    for name in names:
        if name in cli.DOOR.packages and name not in cli.DOOR.installed():
            raise SystemExit(f"`hopline {name}` is not installed here: run scripts/setup test,lint")
        group: Any = typer.main.get_command(cli.build_app([name]))
        yield from leaves(f"hopline {name}", group.commands[name])


def _kind(type_name: str, bounds: str) -> str:
    """The type of a setting, with the bounds of a number."""
    kind = type_name.replace("|", "\\|")
    return f"{kind}, {bounds}" if bounds else kind


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
    "docs/configuration.md": {"settings": settings_table},
    "docs/bad-input.md": {"errors": errors_table},
    "docs/http-api.md": {"event-fields": event_fields_table},
    "docs/cli.md": {"commands": commands_table},
    "docs/guides/store-failures.md": {
        "fallbacks": fallbacks_table,
        "pipeline-fallbacks": pipeline_fallbacks_table,
    },
    "docs/guides/isolation.md": {"limits": limits_table},
    "packages/mesh/docs/configuration.md": {"mesh-settings": mesh_settings_table},
    "packages/mesh/docs/bad-input.md": {"mesh-errors": mesh_errors_table},
    "packages/mesh/docs/cli.md": {"mesh-commands": mesh_commands_table},
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
    for what, page, names in _mentioned():
        for name in names:
            if f"`{name}`" not in texts[page]:
                yield f"{page}: {what} `{name}` is not documented"


def _mentioned() -> Iterator[tuple[str, str, Iterable[str]]]:
    """(kind of name, page, names that stand there)."""
    from hopline.observe.metrics import Metrics
    from hopline.transports import proto
    from hopline.transports.grpc import HEALTH, INFERENCE, REFLECTIONS
    from hopline_mesh import proto as mesh_proto
    from hopline_mesh.out.grpc import MESH
    from hopline_mesh.out.metrics import MeshMetrics

    # `/versions/<version>` is said once for all routes below a model.
    paths = [path for path in routes() if "/versions/<version>" not in path]
    yield "route", "docs/http-api.md", paths
    paths = [path for path in mesh_routes() if path != "/page/<name>"]
    yield "route", "packages/mesh/docs/api.md", paths
    for service in (INFERENCE, HEALTH, REFLECTIONS[0]):
        yield "method", "docs/grpc-api.md", [method.name for method in proto.methods(service)]
    for service in (MESH, HEALTH):
        yield "method", "packages/mesh/docs/api.md", [method.name for method in mesh_proto.methods(service)]
    yield "metric", "docs/operations.md", Metrics()._families
    yield "metric", "packages/mesh/docs/operations.md", MeshMetrics()._families


def check_modules(texts: dict[str, str]) -> Iterator[str]:
    """The list of modules has every file and folder of the package, and names none that is not there."""
    entries = {}
    for line in next(
        block.text for block in blocks(texts[_MODULES]) if "errors.py" in block.text
    ).splitlines():
        if not line.startswith(" "):
            name = line.split()[0]
            entries[name] = line.removeprefix(name)
        else:
            entries[name] += line
    wanted = {file.name for file in SOURCE.glob("*.py")}
    wanted |= {f"{file.parent.relative_to(SOURCE)}/" for file in SOURCE.glob("*/**/*.py")}
    listed = {*entries, *re.findall(r"__\w+__\.py", " ".join(entries.values())), "__init__.py"}
    for name in sorted(wanted - listed):
        yield f"{_MODULES}: the list of modules lacks {name}"
    for name, text in entries.items():
        if not (SOURCE / name).exists():
            yield f"{_MODULES}: the list of modules has {name}, which is not there"
            continue
        folder = (SOURCE / name) if name.endswith("/") else SOURCE
        for file in re.findall(r"[\w/]+\.py\b", text):
            if not any((base / file).exists() for base in (folder, folder.parent, SOURCE)):
                yield f"{_MODULES}: the list of modules has {file} at {name}, which is not there"


def check_convolutions(texts: dict[str, str]) -> Iterator[str]:
    """Lists of the frequent convolutions have those of `packaging/dense`, which is not imported."""
    wanted = {"SAGEConv", "GCNConv", "GraphConv", "RGCNConv", "FastRGCNConv"}  # reductions, by their code
    wanted |= set(
        re.findall(r"^    pyg\.(\w+): ", (SOURCE / "packaging/dense/attend.py").read_text(), re.MULTILINE)
    )
    for page, where in _CONVOLUTIONS.items():
        found = {name for part in re.findall(where, texts[page]) for name in re.findall(r"\w+Conv\b", part)}
        for name in sorted(wanted - found):
            yield f"{page}: {name} is not in the list of convolutions that are split"
        for name in sorted(found - wanted):
            yield f"{page}: {name} is in the list of convolutions that are split, and has no dense form"


def check_files(texts: dict[str, str]) -> Iterator[str]:
    """Python files that pages for developers name are there."""
    there = [
        file.relative_to(ROOT).as_posix()
        for folder in ("src", "tests", "scripts", "benchmarks", "packages")
        for file in (ROOT / folder).rglob("*.py")
    ]
    for page in _FOR_DEVELOPERS:
        for name in re.findall(r"`([\w/.-]+\.py)`", prose(texts.get(page, ""))):
            if not any(f"/{file}".endswith(f"/{name}") for file in there):
                yield f"{page}: {name} is not there"


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


def check_pictures(texts: dict[str, str]) -> Iterator[str]:
    """Every drawing is of its text as it is now, and is on a page."""
    for text in sorted((ROOT / "docs/pictures").glob("*.dot")):
        picture = text.with_suffix(".svg")
        wanted = hashlib.sha256(text.read_bytes()).hexdigest()
        if not picture.exists() or wanted not in picture.read_text():
            yield f"docs/pictures/{text.name}: the drawing is of another text: run scripts/pictures"
        if not any(f"pictures/{picture.name}" in page for page in texts.values()):
            yield f"docs/pictures/{picture.name}: it is on no page"


def check_reachable(texts: dict[str, str]) -> Iterator[str]:
    """Every page of a folder of pages is linked from its index."""
    for folder, index in INDEXES.items():
        linked = {
            (ROOT / folder / link["target"].partition("#")[0]).resolve()
            for link in _LINK.finditer(texts[index])
        }
        for page in texts:
            if page.startswith(folder) and page != index and (ROOT / page).resolve() not in linked:
                yield f"{index}: {page} is not linked"


def check_nav(texts: dict[str, str]) -> Iterator[str]:
    """Every page of a folder of pages is in its site's navigation, and every page of that is there."""

    def listed(folder: str, items: list[Any]) -> Iterator[str]:
        for item in items:
            if isinstance(item, str):
                yield folder + item
                continue
            for below in item.values():
                yield from listed(folder, below if isinstance(below, list) else [below])

    for folder in INDEXES:
        file = (ROOT / folder).parent / "zensical.toml"
        site = file.relative_to(ROOT).as_posix()
        nav = list(listed(folder, tomllib.loads(file.read_text())["project"]["nav"]))
        wanted = {page for page in texts if page.startswith(folder)}
        for page in sorted(wanted - set(nav)):
            yield f"{site}: {page} is not in nav"
        for page in sorted(set(nav) - wanted):
            yield f"{site}: nav has {page}, which is not there"
        for page in sorted(page for page in set(nav) if nav.count(page) > 1):
            yield f"{site}: nav has {page} more than once"


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
    from hopline import cli

    known = dict(_commands([*cli.COMMANDS, *cli.DOOR.packages]))
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
    for check in (
        check_mentions,
        check_modules,
        check_convolutions,
        check_files,
        check_links,
        check_pictures,
        check_reachable,
        check_nav,
        check_blocks,
        check_commands,
    ):
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
