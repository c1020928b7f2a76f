"""The HTML page at `/`: the models and links to other pages. Rendered on the server, without scripts."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any
from urllib.parse import quote

from hopline import __version__
from hopline.transports.interface import ScoringService
from hopline.types import ModelInfo

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


def index_page(service: ScoringService) -> bytes:
    """HTML that lists the models with their state, inputs and outputs."""
    rows = "".join(_row(service.describe(name)) for name in service.model_names())
    rows += "".join(_unavailable(name, why) for name, why in service.unavailable().items())
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


def _rollouts(service: ScoringService) -> str:
    """Return HTML of the running rollouts with the figures of both versions; "" if there are none."""
    describe: Callable[[str], dict[str, Any]] | None = getattr(service, "describe_rollout", None)
    if describe is None:
        return ""
    parts = []
    for name in service.model_names():
        rollout = describe(name)["rollout"]
        if rollout is None:
            continue
        seen = rollout.get("seen", {})
        sides = "".join(
            f"<tr><td>{side} {escape(rollout[side])}</td>"
            + "".join(f"<td>{_told(seen.get(side, {}).get(column))}</td>" for column in _SEEN)
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


def _told(value: object) -> str:
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


def _unavailable(name: str, why: str) -> str:
    return f'<tr><td>{escape(name)}</td><td></td><td colspan="4">UNAVAILABLE: {escape(why)}</td></tr>'
