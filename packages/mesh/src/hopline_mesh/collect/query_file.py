"""The set of queries for a mesh. Reads a file of the user's own, and reports errors with path and line."""

from __future__ import annotations

import difflib
import re
import string
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from hopline.errors import ConfigError
from hopline.toml import TOMLDecodeError, parse_toml
from hopline_mesh.collect.containers import containers
from hopline_mesh.collect.istio import istio
from hopline_mesh.collect.linkerd import linkerd
from hopline_mesh.collect.promql import Side, check_matchers, duration
from hopline_mesh.collect.query import Labels, Query, QuerySet
from hopline_mesh.roles import role_of
from hopline_mesh.schema import kind_of

_COLUMN = re.compile(r"[a-z][a-z0-9_]{0,62}")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(.*)\})?", re.DOTALL)
_TABLE = re.compile(r"\s*\[\[?\s*([\w.-]+)\s*\]\]?\s*(?:#.*)?")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|' r"'(?:[^'\\]|\\.)*'|`[^`]*`", re.DOTALL)

_TOP = ("extends", "without", "labels", "node", "edge")
_BOTH = ("column", "query", "histogram", "quantile", "scale", "combine", "per", "reveals")
_PLACES = {
    "node": ("service", "namespace", "pod"),
    "edge": ("caller", "caller_namespace", "callee", "callee_namespace"),
}
_BUILT_IN: dict[str, Callable[[float, str], tuple[Query, ...]]] = {
    "istio": istio,
    "linkerd": linkerd,
    "containers": containers,
}


def queries_for(
    mesh: Literal["istio", "linkerd", "file"],
    query_file: Path | None = None,
    *,
    window_s: float = 60.0,
    matchers: str = "",
) -> QuerySet:
    """Return the queries for a mesh.

    For Istio and Linkerd, CPU and memory of containers are included, for services of the mesh; a file
    has only its own queries.

    Args:
        mesh: source of the metrics; "file": queries of `query_file`.
        query_file: of the user.
        window_s: of rates; at least four scrapes.
        matchers: added to every selector, such as `cluster="eu-1"`.

    Raises:
        ConfigError: an unknown mesh, a missing file, or an invalid file.
    """
    if mesh == "file":
        if query_file is None:
            raise ConfigError("query_file: not set, but mesh = file needs a file of queries")
        return read_query_file(query_file, window_s, matchers)
    if mesh not in ("istio", "linkerd"):
        raise ConfigError(f"mesh: {mesh!r} is not one of istio, linkerd, file")
    # Services that only container metrics show are not part of the mesh.
    resources = (replace(query, reveals=False) for query in containers(window_s, matchers))
    return QuerySet(mesh, (*_BUILT_IN[mesh](window_s, matchers), *resources))


def read_query_file(path: Path, window_s: float = 60.0, matchers: str = "") -> QuerySet:
    """Read queries from a TOML file; packages/mesh/docs/collect.md describes it.

    Args:
        path: the file.
        window_s: value of `$window`.
        matchers: value of `$matchers`; also added to built-in queries that the file extends.

    Raises:
        ConfigError: the file cannot be read or is invalid; the message starts with the path and the line.
    """
    try:
        text = path.read_text()
        tree = parse_toml(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    file = _Table(path, text.splitlines(), "", 0, tree)
    file.check_keys(_TOP)
    defaults = file.table("labels", 0, tree.get("labels", {}), _PLACES["node"] + _PLACES["edge"]).values
    variables = {"window": duration(window_s), "matchers": check_matchers(matchers)}
    own: dict[str, tuple[_Table, Query]] = {}
    for of, places in _PLACES.items():
        items = tree.get(of, [])
        if not isinstance(items, list):
            file.wrong(of, f"must be [[{of}]], once for each query")
        for number, values in enumerate(items):
            table = file.table(of, number, values, places + _BOTH)
            for query in _queries(table, {**defaults, **values}, variables):
                if query.name in own:
                    table.wrong("column", f"{query.name} has two queries")
                own[query.name] = table, query
    queries = (*_without(_extended(file, window_s, matchers), own), *(query for _, query in own.values()))
    if not queries:
        raise ConfigError(f"{path}: it has no queries; add [[node]] and [[edge]], or extends")
    names = {query.name for query in queries}
    for query in queries:
        if query.per and (per := f"{query.of}.{query.per}") not in names:
            if query.name in own:
                own[query.name][0].wrong("per", f"there is no query for {per}")
            file.wrong("without", f"{query.name} needs {per}; leave out both or none")
    if not any(query.reveals for query in queries):
        raise ConfigError(f"{path}: none of them reveals services; set reveals = true for one")
    return QuerySet(path.name, queries)


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a file, or the file itself (without a name); reports errors with the line.

    Attributes:
        path: of the file.
        lines: of the file.
        name, number: of tables of this name, the one with this number, from 0.
        values: by key.
    """

    path: Path
    lines: list[str]
    name: str
    number: int
    values: Mapping[str, Any]

    def table(self, name: str, number: int, values: Any, known: Sequence[str]) -> _Table:
        """Return another table of the file, which may only have these keys."""
        found = _Table(self.path, self.lines, name, number, values)
        if not isinstance(values, Mapping):
            found.wrong("", "not a table of keys and values")
        found.check_keys(known)
        return found

    def check_keys(self, known: Sequence[str]) -> None:
        for key in self.values:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
                self.wrong(key, f"unknown key; {hint}")

    def get(self, key: str, default: Any, is_valid: Callable[[Any], bool], otherwise: str) -> Any:
        """Return a value; if it is not valid, the error has the value and this text."""
        value = self.values.get(key, default)
        if not is_valid(value):
            self.wrong(key, f"{value!r} {otherwise}")
        return value

    def text(self, key: str) -> str:
        if key not in self.values:
            self.wrong("", f"{key} is missing")
        text: str = self.get(
            key, "", lambda value: isinstance(value, str) and value.strip() != "", "is not text"
        )
        return text.strip()

    def promql(self, key: str, variables: Mapping[str, str]) -> str:
        template = string.Template(self.text(key))
        try:
            promql = template.substitute(variables)
        except (KeyError, ValueError):
            self.wrong(key, "only $window and $matchers are known; write $$ for a literal $")
        if problem := _unbalanced(promql):
            self.wrong(key, problem)
        return promql

    def labels(self, merged: Mapping[str, Any], key: str, namespace: str) -> Labels:
        """Return the labels under two keys of this table, or of the defaults that are merged with it."""
        if key not in merged:
            self.wrong("", f"{key} is missing: set the label with the name, here or under [labels]")
        found = []
        for each in (key, namespace):
            value = merged.get(each, [])
            names = [value] if isinstance(value, str) else value
            if not isinstance(names, list) or not all(
                isinstance(name, str) and _LABEL.fullmatch(name) for name in names
            ):
                self.wrong(each, f"{value!r} is not the name of a label or a list of names")
            found.append(tuple(names))
        return Labels(found[0], found[1], pod=key == "pod")

    def wrong(self, key: str, reason: str) -> NoReturn:
        where = ".".join(filter(None, (self.name, key)))
        raise ConfigError(f"{self.path}:{self._line(key)}: {where}: {reason}")

    def _line(self, key: str) -> int:
        """Return the line of a key; if it is missing, that of the table."""
        inside, seen, start = not self.name, 0, 1
        for line, text in enumerate(self.lines, 1):
            if header := _TABLE.fullmatch(text):
                inside = header[1] == self.name and seen == self.number
                seen += header[1] == self.name
                if inside:
                    start = line
                elif not self.name and header[1] == key:
                    return line
            elif inside and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", text):
                return line
        return start


def _all_in(names: Any, known: Container[str]) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) and name in known for name in names)


def _extended(file: _Table, window_s: float, matchers: str) -> list[Query]:
    """Return queries of the built-in sets that a file extends, minus those of `without`."""
    named = file.values.get("extends", [])
    names = [named] if isinstance(named, str) else named
    if not _all_in(names, _BUILT_IN):
        file.wrong("extends", f"must be a list of {', '.join(_BUILT_IN)}; got {named!r}")
    queries: dict[str, Query] = {}
    for name in names:
        for query in _BUILT_IN[name](window_s, matchers):
            queries.setdefault(query.name, query)
    without = file.values.get("without", [])
    if not _all_in(without, queries):
        file.wrong(
            "without", f"must be a list of extended columns, such as node.connections; got {without!r}"
        )
    return _without(queries.values(), without)


def _without(queries: Iterable[Query], names: Container[str]) -> list[Query]:
    """Return the queries for other columns, and the checks of their histograms."""
    found = []
    for query in queries:
        checked = tuple(each for each in query.ceiling_of if f"{query.of}.{each[0]}" not in names)
        if checked:
            found.append(replace(query, column=checked[-1][0], ceiling_of=checked))
        elif not query.ceiling_of and query.name not in names:
            found.append(query)
    return found


def _queries(table: _Table, merged: Mapping[str, Any], variables: Mapping[str, str]) -> list[Query]:
    """Return the query of one table; for a histogram also the check of its last bucket.

    Args:
        merged: its values and the default labels.
    """
    column = table.text("column")
    if not _COLUMN.fullmatch(column):
        table.wrong("column", f"{column!r} may have only a-z, 0-9 and _, such as request_rate")
    scale = table.get("scale", 1.0, lambda value: _is_between(0, value, 1e30), "is not a number above 0")
    reveals = table.get("reveals", True, lambda value: isinstance(value, bool), "is neither true nor false")
    per = table.get(
        "per", "", lambda value: isinstance(value, str) and value != column, "is not another column"
    )
    # Latencies and shares of several pods have no sum; the parts of a quotient have one.
    has_sum = per or (kind_of(column) != "share" and role_of(column) not in ("latency", "outgoing"))
    combine = table.get(
        "combine",
        "sum" if has_sum else "max",
        lambda value: value in ("sum", "max"),
        "is neither sum nor max",
    )
    caller = None
    if table.name == "node":
        is_pod = "pod" in table.values or ("pod" in merged and "service" not in table.values)
        service = table.labels(merged, "pod" if is_pod else "service", "namespace")
    else:
        service = table.labels(merged, "callee", "callee_namespace")
        caller = table.labels(merged, "caller", "caller_namespace")
    if "histogram" not in table.values:
        if "quantile" in table.values:
            table.wrong("quantile", "allowed only with histogram")
        side, promql = Side("", service, caller, reveals), table.promql("query", variables)
        return [side.query(column, promql, scale=float(scale), combine=combine, per=per)]
    if "query" in table.values or per:
        table.wrong("histogram", "not allowed together with query or per")
    q = table.get(
        "quantile",
        None,
        lambda value: _is_between(0, value, 1),
        "is not a number between 0 and 1, such as 0.99",
    )
    found = _SELECTOR.fullmatch(table.promql("histogram", variables))
    if found is None or not found[1].endswith("_bucket"):
        table.wrong("histogram", 'must be like http_duration_seconds_bucket{job="shop"}')
    side = Side((found[2] or "").strip().removesuffix(","), service, caller, reveals)
    how = {"scale": float(scale), "combine": combine}
    return list(side.latencies({column: float(q)}, found[1], variables["window"], **how))


def _is_between(low: float, value: Any, high: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low < value < high


def _unbalanced(promql: str) -> str:
    """Return the problem with brackets and quotes, or ""; Prometheus itself checks everything else."""
    pairs = {")": "(", "]": "[", "}": "{"}
    open_now: list[str] = []
    bare = _QUOTED.sub("", promql)
    if quote := re.search("[\"'`]", bare):
        return f"a text that starts with {quote[0]} has no end"
    for character in bare:
        if character in "([{":
            open_now.append(character)
        elif character in pairs and (not open_now or open_now.pop() != pairs[character]):
            return f"{character!r} has no opening bracket"
    return f"{open_now[-1]!r} is not closed" if open_now else ""
