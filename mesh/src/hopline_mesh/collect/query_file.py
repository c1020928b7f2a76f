"""The set of queries for a mesh. Reads a file of the user's own, and reports errors with path and line."""

from __future__ import annotations

import difflib
import re
import string
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from hopline.errors import ConfigError
from hopline_mesh.collect.containers import containers
from hopline_mesh.collect.istio import istio
from hopline_mesh.collect.linkerd import linkerd
from hopline_mesh.collect.promql import (
    beyond_last_bucket,
    check_matchers,
    duration,
    quantile,
    selector,
)
from hopline_mesh.collect.query import Combine, Labels, Query, QuerySet

_COLUMN = re.compile(r"[a-z][a-z0-9_]{0,62}")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(.*)\})?", re.DOTALL)
_TABLE = re.compile(r"\s*\[\[?\s*([\w.-]+)\s*\]\]?\s*(?:#.*)?")

_TOP = ("extends", "without", "labels", "node", "edge")
_BOTH = ("column", "query", "histogram", "quantile", "scale", "combine", "per", "reveals")
_KEYS = {
    "node": ("service", "namespace", "pod", *_BOTH),
    "edge": ("caller", "caller_namespace", "callee", "callee_namespace", *_BOTH),
}
_PLACE_KEYS = ("service", "namespace", "pod", "caller", "caller_namespace", "callee", "callee_namespace")
_BUILT_IN = ("istio", "linkerd", "containers")


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
    found = istio(window_s, matchers) if mesh == "istio" else linkerd(window_s, matchers)
    return found.plus(containers(window_s, matchers), reveal=False)


def read_query_file(path: Path, window_s: float = 60.0, matchers: str = "") -> QuerySet:
    """Read queries from a TOML file; mesh/docs/collect.md describes it.

    Args:
        path: the file.
        window_s: value of `$window`.
        matchers: value of `$matchers`; also added to built-in queries that the file extends.

    Raises:
        ConfigError: the file cannot be read or is invalid; the message starts with the path and the line.
    """
    try:
        text = path.read_text()
        tree = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    return _QueryFile(path, text, tree, window_s, check_matchers(matchers)).read()


class _QueryFile:
    """The reader of one file."""

    def __init__(self, path: Path, text: str, tree: dict[str, Any], window_s: float, matchers: str) -> None:
        self._path = path
        self._lines = text.splitlines()
        self._tree = tree
        self._window_s = window_s
        self._matchers = matchers

    def read(self) -> QuerySet:
        for key in self._tree:
            if key not in _TOP:
                self._wrong("", 0, key, f"unknown key{_closest(key, _TOP)}")
        defaults = self._table("labels", 0, self._tree.get("labels", {}))
        for key in defaults:
            if key not in _PLACE_KEYS:
                self._wrong("labels", 0, key, f"unknown key{_closest(key, _PLACE_KEYS)}")
        queries: list[Query] = []
        places: list[tuple[Literal["node", "edge"], int]] = []
        kinds: tuple[Literal["node"], Literal["edge"]] = ("node", "edge")
        for of in kinds:
            items = self._tree.get(of, [])
            if not isinstance(items, list):
                self._wrong("", 0, of, f"must be [[{of}]], once for each query")
            for number, item in enumerate(items):
                for one in self._of_item(of, number, self._table(of, number, item), defaults):
                    if any(one.name == other.name for other in queries):
                        self._wrong(of, number, "column", f"{one.name} has two queries")
                    queries.append(one)
                    places.append((of, number))
        base = [
            query
            for query in self._extended()
            if f"{query.of}.{query.column}" not in {f"{own.of}.{own.column}" for own in queries}
        ]
        every = [*base, *queries]
        for query, (of, number) in zip(queries, places, strict=True):
            if query.per and not any(o.of == of and o.column == query.per for o in every):
                self._wrong(of, number, "per", f"there is no query for {of}.{query.per}")
        if not every:
            raise ConfigError(f"{self._path}: it has no queries; add [[node]] and [[edge]], or extends")
        try:
            return QuerySet(self._path.name, tuple(every))
        except ConfigError as error:
            raise ConfigError(f"{self._path}: {error}") from None

    def _extended(self) -> list[Query]:
        """Return queries of the built-in sets that this file extends, minus those of `without`."""
        named = self._tree.get("extends", [])
        names = [named] if isinstance(named, str) else named
        if not isinstance(names, list) or any(name not in _BUILT_IN for name in names):
            self._wrong("", 0, "extends", f"must be a list of {', '.join(_BUILT_IN)}; got {named!r}")
        queries: list[Query] = []
        for name in names:
            if name == "containers":
                found: Sequence[Query] = containers(self._window_s, self._matchers)
            else:
                built_in = {"istio": istio, "linkerd": linkerd}[name]
                found = built_in(self._window_s, self._matchers).queries
            queries.extend(query for query in found if query.name not in {q.name for q in queries})
        without = self._tree.get("without", [])
        columns = {f"{query.of}.{query.column}" for query in queries}
        if not isinstance(without, list) or any(name not in columns for name in without):
            self._wrong(
                "",
                0,
                "without",
                f"must be a list of extended columns, such as node.connections; got {without!r}",
            )
        return [query for query in queries if f"{query.of}.{query.column}" not in without]

    def _of_item(
        self, of: Literal["node", "edge"], number: int, item: dict[str, Any], defaults: dict[str, Any]
    ) -> list[Query]:
        """Return the query of one table; for a histogram also the check of its last bucket."""
        for key in item:
            if key not in _KEYS[of]:
                self._wrong(of, number, key, f"unknown key{_closest(key, _KEYS[of])}")
        column = self._text(of, number, item, "column")
        if not _COLUMN.fullmatch(column):
            self._wrong(
                of, number, "column", f"{column!r} may have only a-z, 0-9 and _, such as request_rate"
            )
        scale = item.get("scale", 1.0)
        if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < 1e30:
            self._wrong(of, number, "scale", f"{scale!r} is not a number above 0")
        latency = column.endswith("_ms")
        combine: Combine = item.get("combine", "max" if latency else "sum")
        if combine not in ("sum", "max"):
            self._wrong(of, number, "combine", f"{combine!r} is neither sum nor max")
        reveals = item.get("reveals", True)
        if not isinstance(reveals, bool):
            self._wrong(of, number, "reveals", f"{reveals!r} is neither true nor false")
        per = item.get("per", "")
        if not isinstance(per, str) or per == column:
            self._wrong(of, number, "per", f"{per!r} is not another column")
        merged = {**defaults, **item}
        caller = None
        if of == "node":
            pod = "pod" in item or ("pod" in defaults and "service" not in item)
            service = self._labels(of, number, merged, "pod" if pod else "service", "namespace", pod=pod)
        else:
            service = self._labels(of, number, merged, "callee", "callee_namespace")
            caller = self._labels(of, number, merged, "caller", "caller_namespace")
        if "histogram" not in item:
            if "quantile" in item:
                self._wrong(of, number, "quantile", "allowed only with histogram")
            promql = self._promql(of, number, item, "query")
            return [Query(of, column, promql, service, caller, float(scale), combine, per, reveals)]
        if "query" in item or per:
            self._wrong(of, number, "histogram", "not allowed together with query or per")
        q = item.get("quantile")
        if isinstance(q, bool) or not isinstance(q, (int, float)) or not 0 < q < 1:
            self._wrong(of, number, "quantile", f"{q!r} is not a number between 0 and 1, such as 0.99")
        found = _SELECTOR.fullmatch(self._promql(of, number, item, "histogram"))
        if found is None or not found[1].endswith("_bucket"):
            self._wrong(of, number, "histogram", 'must be like http_duration_seconds_bucket{job="shop"}')
        metric, matchers = found[1], (found[2] or "").strip().removesuffix(",")
        parts = [service] if caller is None else [caller, service]
        labels = ", ".join(
            dict.fromkeys(name for part in parts for name in (*part.service, *part.namespace))
        )
        window = duration(self._window_s)
        value = quantile(q, labels, selector(metric, matchers), window=window)
        above = beyond_last_bucket(q, labels, metric, matchers, window=window)
        return [
            Query(of, column, value, service, caller, float(scale), combine, "", reveals),
            Query(of, column, above, service, caller, reveals=False, ceiling_of=((column, float(q)),)),
        ]

    def _promql(self, of: str, number: int, item: dict[str, Any], key: str) -> str:
        text = self._text(of, number, item, key)
        try:
            promql = string.Template(text).substitute(
                window=duration(self._window_s), matchers=self._matchers
            )
        except (KeyError, ValueError):
            self._wrong(of, number, key, "only $window and $matchers are known; write $$ for a literal $")
        if problem := _unbalanced(promql):
            self._wrong(of, number, key, problem)
        return promql

    def _labels(
        self, of: str, number: int, item: dict[str, Any], key: str, namespace: str, *, pod: bool = False
    ) -> Labels:
        if key not in item:
            self._wrong(
                of, number, "", f"{key} is missing: set the label with the name, here or under [labels]"
            )
        return Labels(self._names(of, number, item, key), self._names(of, number, item, namespace), pod=pod)

    def _names(self, of: str, number: int, item: dict[str, Any], key: str) -> tuple[str, ...]:
        value = item.get(key, [])
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(
            isinstance(name, str) and _LABEL.fullmatch(name) for name in names
        ):
            self._wrong(of, number, key, f"{value!r} is not the name of a label or a list of names")
        return tuple(names)

    def _text(self, of: str, number: int, item: dict[str, Any], key: str) -> str:
        value = item.get(key)
        if value is None:
            self._wrong(of, number, "", f"{key} is missing")
        if not isinstance(value, str) or not value.strip():
            self._wrong(of, number, key, f"{value!r} is not text")
        return value.strip()

    def _table(self, of: str, number: int, item: Any) -> dict[str, Any]:
        if not isinstance(item, Mapping):
            self._wrong(of, number, "", "not a table of keys and values")
        return dict(item)

    def _wrong(self, table: str, number: int, key: str, reason: str) -> NoReturn:
        where = f"{table}.{key}" if table and key else table or key
        raise ConfigError(f"{self._path}:{self._line(table, number, key)}: {where}: {reason}")

    def _line(self, table: str, number: int, key: str) -> int:
        """Return the line of a key within the nth table of a name; if it is missing, that of the table."""
        current, seen, start = "", -1, 1
        for line, text in enumerate(self._lines, 1):
            if header := _TABLE.fullmatch(text):
                current = header[1]
                if current == table:
                    seen += 1
                    if seen == number:
                        start = line
                if not key and current == table and seen == number:
                    return line
            inside = current == table and (not table or seen == number)
            if inside and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", text):
                return line
            if not table and header and header[1] == key:
                return line
        return start


def _closest(key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"


def _unbalanced(promql: str) -> str:
    """Return the problem with brackets and quotes, or ""; Prometheus itself checks everything else."""
    pairs = {")": "(", "]": "[", "}": "{"}
    open_now: list[str] = []
    quote = ""
    escaped = False
    for character in promql:
        if quote:
            if escaped:
                escaped = False
            elif character == "\\" and quote != "`":
                escaped = True
            elif character == quote:
                quote = ""
        elif character in "\"'`":
            quote = character
        elif character in "([{":
            open_now.append(character)
        elif character in pairs and (not open_now or open_now.pop() != pairs[character]):
            return f"{character!r} has no opening bracket"
    if quote:
        return f"a text that starts with {quote} has no end"
    return f"{open_now[-1]!r} is not closed" if open_now else ""
