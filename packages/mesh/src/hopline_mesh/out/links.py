"""Links from an incident to other tools, by templates of the settings: dashboards, traces, logs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

from hopline.errors import ConfigError
from hopline_mesh.incident import Incident
from hopline_mesh.roster import namespace_of

#: What a template may name. `name` is the service without its namespace; times are those of the incident,
#: with ten minutes before it.
PLACEHOLDERS = (
    "service",
    "namespace",
    "name",
    "caller",
    "incident",
    "start_s",
    "end_s",
    "start_ms",
    "end_ms",
)
_TEMPLATE = re.compile(r"([^=]{1,60})=(https?://[^/\s]\S*)")
_FIELD = re.compile(r"\{([^{}]*)\}")
_LEAD_S = 600.0


def check_template(text: str) -> tuple[str, str]:
    """Return the name and the template of a link.

    Raises:
        ConfigError: it is not "name=https://…", or has an unknown placeholder.
    """
    found = _TEMPLATE.fullmatch(text)
    if found is None:
        raise ConfigError(f'links: {text!r} is not "name=https://host/path?var={{service}}"')
    for field in _FIELD.findall(found[2]):
        if field not in PLACEHOLDERS:
            raise ConfigError(f"links: {text!r} has {{{field}}}; known are {', '.join(PLACEHOLDERS)}")
    return found[1].strip(), found[2]


def links_of(incident: Incident, templates: Sequence[str], now_s: float) -> list[dict[str, str]]:
    """Return links about the first suspect of an incident, `name` and `url` each; none without suspects.

    Names of the mesh are quoted, so they cannot leave their place in a URL.
    """
    if not incident.suspects:
        return []
    first = incident.suspects[0]
    start_s = incident.start_s - _LEAD_S
    end_s = now_s if incident.end_s is None else incident.end_s + _LEAD_S
    values = {
        "service": first.service,
        "namespace": namespace_of(first.service),
        "name": first.service.rpartition("/")[2],
        "caller": first.caller or "",
        "incident": incident.id,
        "start_s": f"{start_s:.0f}",
        "end_s": f"{end_s:.0f}",
        "start_ms": f"{1000 * start_s:.0f}",
        "end_ms": f"{1000 * end_s:.0f}",
    }
    quoted = {key: quote(value.encode("utf-8", "replace"), safe="") for key, value in values.items()}
    found = []
    for text in templates:
        name, template = check_template(text)
        found.append({"name": name, "url": _FIELD.sub(lambda match: quoted[match[1]], template)})
    return found


def origin_of(url: str) -> str:
    """Return the origin of a URL as browsers send it: in small letters, without the usual port.

    Raises:
        ValueError: the URL is invalid.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    if not host:
        raise ValueError("it has no host")
    name = f"[{host}]" if ":" in host else host
    is_usual = port in (None, {"http": 80, "https": 443}.get(parts.scheme))
    return f"{parts.scheme}://{name}" if is_usual else f"{parts.scheme}://{name}:{port}"
