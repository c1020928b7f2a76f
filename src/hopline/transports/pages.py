"""The plain page at `/`: which models there are and where to go. Server-rendered, no script."""

from __future__ import annotations

from html import escape
from urllib.parse import quote

from hopline import __version__
from hopline.transports.interface import ScoringService
from hopline.types import ModelInfo

_LINKS = (
    ("/readyz", "readiness"),
    ("/metrics", "metrics"),
    ("/v2", "server metadata"),
    ("/v2/models/stats", "statistics"),
)
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.4rem .8rem .4rem 0;"
    "border-bottom:1px solid #ddd}code{background:#f4f4f4;padding:.1rem .3rem}"
)


def index_page(service: ScoringService) -> bytes:
    """HTML that lists the models with their state, inputs and outputs."""
    rows = "".join(_row(service.describe(name)) for name in service.model_names())
    links = " · ".join(f'<a href="{path}">{text}</a>' for path, text in _LINKS)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Hopline</title><style>{_STYLE}</style></head><body>"
        f"<h1>Hopline {escape(__version__)}</h1><p>{links}</p>"
        "<table><thead><tr><th>Model</th><th>Version</th><th>State</th><th>Takes</th><th>Answers</th>"
        f"<th>Graph</th></tr></thead><tbody>{rows or _NO_MODELS}</tbody></table>"
        "<p>Score with <code>POST /v1/models/&lt;model&gt;/score</code>.</p></body></html>"
    ).encode()


_NO_MODELS = '<tr><td colspan="6">No models are loaded.</td></tr>'


def _row(info: ModelInfo) -> str:
    takes = ", ".join(tensor.name for tensor in info.inputs if not tensor.optional)
    answers = ", ".join(tensor.name for tensor in info.outputs)
    state = f"{info.state}: {info.reason}" if info.reason else info.state
    cells = (info.version, state, takes, answers, info.graph_version)
    link = f'<a href="/v2/models/{escape(quote(info.name, safe=""))}">{escape(info.name)}</a>'
    return f"<tr><td>{link}</td>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
