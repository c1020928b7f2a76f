"""The HTML page at `/`: the models and links to other pages. Rendered on the server, without scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hopline import __version__
from hopline.types import ModelInfo

if TYPE_CHECKING:
    from hopline.service import Service

_OWN_STYLE = (
    "details{border:1px solid #ddd;border-radius:.3rem;margin:.4rem 0;padding:.3rem .8rem}"
    "summary{cursor:pointer}.method{display:inline-block;width:3.5rem;font-weight:600;color:#285}"
    "pre{background:#f4f4f4;padding:.6rem;overflow:auto;font-size:13px}"
)


def api_page(document: Mapping[str, Any]) -> bytes:
    """Return the page of an OpenAPI document."""
    info = document["info"]
    operations = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    groups = "".join(
        f"<h2>{escape(tag['name'])}</h2>"
        + "".join(_operation(*each) for each in operations if tag["name"] in each[2]["tags"])
        for tag in document["tags"]
    )
    schemas = "".join(
        f'<details id="{escape(name)}"><summary>{escape(name)}</summary>{_schema_table(schema)}</details>'
        for name, schema in document["components"]["schemas"].items()
    )
    title = f"{info['title']} {info['version']}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}: HTTP API</title><style>{STYLE}{_OWN_STYLE}</style></head><body>"
        f"<h1>{escape(title)}: HTTP API</h1><p>{escape(info['summary'])} "
        '<a href="/openapi.json">/openapi.json</a> has the same for machines, as OpenAPI 3.1.</p>'
        f"{groups}<h2>Types</h2>{schemas}</body></html>"
    ).encode()


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    parts = [f"<p>{escape(operation['summary'])}{_permission(operation)}</p>"]
    if "parameters" in operation:
        rows = "".join(
            f"<tr><td><code>{escape(each['name'])}</code></td><td>{escape(each['in'])}</td>"
            f"<td>{_type(each['schema'])}</td><td>{escape(each['description'])}</td></tr>"
            for each in operation["parameters"]
        )
        parts.append(_table(("Parameter", "In", "Type", ""), rows))
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]
        parts.append(f"<p>Body: {_content(content)}</p>")
        parts += [
            f"<pre>{escape(json.dumps(each['example'], indent=1))}</pre>"
            for each in content.values()
            if "example" in each
        ]
    responses = operation["responses"]
    parts.append(f"<p>Answer: {_content(responses['200']['content'])}</p>")
    errors = ", ".join(status for status in responses if status != "200")
    parts.append(f"<p>Other statuses: {escape(errors)}.</p>")
    head = f'<span class="method">{method.upper()}</span><code>{escape(path)}</code>'
    anchor = escape(operation["operationId"])
    return f'<details id="{anchor}"><summary>{head}</summary>{"".join(parts)}</details>'


def _permission(operation: Mapping[str, Any]) -> str:
    for requirement in operation.get("security", ()):
        for roles in requirement.values():
            named = ", ".join(f"<code>{escape(role)}</code>" for role in roles)
            return f" Permission: {named}." if roles else " Needs credentials."
    return ""


def _content(content: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{escape(media)} {_type(each.get('schema', {}))}".strip() for media, each in content.items()
    )


def _schema_table(schema: Mapping[str, Any]) -> str:
    description = f"<p>{escape(schema.get('description', ''))}</p>"
    required = schema.get("required", ())
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{_type(each)}</td>"
        f"<td>{'required' if name in required else ''}</td>"
        f"<td>{escape(each.get('description', ''))}</td></tr>"
        for name, each in schema.get("properties", {}).items()
    )
    return description + (_table(("Field", "Type", "", ""), rows) if rows else "")


def _type(schema: Mapping[str, Any] | bool) -> str:
    """Return HTML of a schema in a few words; referenced types are links."""
    return " or ".join(dict.fromkeys(_types(schema))) or "any"


def _types(schema: Mapping[str, Any] | bool) -> Iterator[str]:
    if isinstance(schema, bool):
        return
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        yield f'<a href="#{name}">{name}</a>'
    for each in schema.get("anyOf", ()):
        yield from _types(each)
    for value in schema.get("enum", ()):
        yield f"<code>{escape(json.dumps(value))}</code>"
    kind = schema.get("type")
    if "enum" in schema or kind is None:
        return
    if kind == "array":
        items = " and ".join(_type(each) for each in schema.get("prefixItems", ()))
        yield f"list of {items or _type(schema.get('items', {}))}"
    elif kind == "object" and "additionalProperties" in schema and "properties" not in schema:
        values = schema["additionalProperties"]
        yield f"object of {_type(values)}" if isinstance(values, dict) else "object"
    else:
        yield " or ".join(map(escape, [kind] if isinstance(kind, str) else kind))


def _table(heads: tuple[str, ...], rows: str) -> str:
    cells = "".join(f"<th>{head}</th>" for head in heads)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>"


_LINKS = (
    ("/readyz", "readiness"),
    ("/metrics", "metrics"),
    ("/v2", "server metadata"),
    ("/v2/models/stats", "statistics"),
    ("/docs", "HTTP API"),
)
#: Style of all pages.
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.4rem .8rem .4rem 0;"
    "border-bottom:1px solid #ddd}.bar{background:#eee;height:.8rem;border-radius:.4rem;overflow:hidden}"
    ".bar div{background:#2a7;height:100%}code{background:#f4f4f4;padding:.1rem .3rem}"
)


def index_page(service: Service) -> bytes:
    """HTML that lists the models with their state, inputs and outputs."""
    rows = "".join(_row(service.describe(name)) for name in service.model_names())
    for name, why in service.unavailable().items():
        rows += f'<tr><td>{escape(name)}</td><td></td><td colspan="4">UNAVAILABLE: {escape(why)}</td></tr>'
    rollouts = _rollouts(service)
    # A page with a running rollout reloads.
    refresh = f'<meta http-equiv="refresh" content="{_REFRESH_S}">' if rollouts else ""
    links = " · ".join(f'<a href="{path}">{text}</a>' for path, text in _LINKS)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width">{refresh}'
        f"<title>Hopline</title><style>{STYLE}</style></head><body>"
        f"<h1>Hopline {escape(__version__)}</h1><p>{links}</p>"
        "<table><thead><tr><th>Model</th><th>Version</th><th>State</th><th>Takes</th><th>Answers</th>"
        f"<th>Graph</th></tr></thead><tbody>{rows or _NO_MODELS}</tbody></table>"
        f"{rollouts}"
        "<p>Score with <code>POST /v1/models/&lt;model&gt;/score</code>.</p></body></html>"
    ).encode()


def _rollouts(service: Service) -> str:
    """Return HTML of the running rollouts with the figures of both versions; "" if there are none."""
    parts = []
    for name in service.model_names():
        rollout = service.describe_rollout(name)["rollout"]
        if rollout is None:
            continue
        seen = rollout.get("seen", {})
        sides = "".join(
            f"<tr><td>{side} {escape(rollout[side])}</td>"
            + "".join(f"<td>{_shown(seen.get(side, {}).get(column))}</td>" for column in _SEEN)
            + "</tr>"
            for side in ("current", "candidate")
        )
        parts.append(
            f"<h2>{escape(name)}: {escape(rollout['kind'].replace('_', '/'))} of "
            f"{escape(rollout['candidate'])}, {escape(rollout['status'])}</h2>"
            f'<div class="bar"><div style="width:{rollout["percent"]:g}%"></div></div>'
            f"<p>{rollout['percent']:g} % of requests; {escape(rollout.get('why', ''))}</p>"
            "<table><thead><tr><th></th>"
            + "".join(f"<th>{column.replace('_', ' ')}</th>" for column in _SEEN)
            + f"</tr></thead><tbody>{sides}</tbody></table>"
        )
    return "".join(parts)


def _shown(value: object) -> str:
    return "–" if value is None else escape(f"{value:,}" if isinstance(value, int) else str(value))


_REFRESH_S = 2
_SEEN = ("requests", "errors", "p99_ms", "compared", "differing")
_NO_MODELS = '<tr><td colspan="6">No models are loaded.</td></tr>'


def _row(info: ModelInfo) -> str:
    takes = ", ".join(tensor.name for tensor in info.inputs if not tensor.optional)
    answers = ", ".join(tensor.name for tensor in info.outputs)
    state = f"{info.state}: {info.reason}" if info.reason else info.state
    cells = (info.version, state, takes, answers, info.graph_version)
    link = f'<a href="/v2/models/{escape(quote(info.name, safe=""))}">{escape(info.name)}</a>'
    return f"<tr><td>{link}</td>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
