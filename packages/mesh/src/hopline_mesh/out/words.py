"""Numbers and names of a mesh as text, for alerts and the page's server side.

Names come from the mesh and are untrusted.
"""

from __future__ import annotations

import math
import re

from hopline_mesh.incident import Evidence, Incident, Suspect

#: Characters that names may not contain: line breaks, control characters, characters that change the text
#: direction (Unicode TR 36), and halves of surrogate pairs, which cannot be encoded.
_HOSTILE = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_UNITS = {"request_rate": "/s", "cpu_cores": " cores", "connections": " connections"}
_NAMES = {
    "request_rate": "requests",
    "error_share": "errors",
    "p50_ms": "median latency",
    "p99_ms": "p99 latency",
    "cpu_cores": "CPU",
    "memory_bytes": "memory",
    "connections": "open connections",
    "client_ms": "latency seen by the caller",
    "server_ms": "latency seen by the callee",
    "stuck_rollout": "rollout is stuck",
    "oom_kill": "killed for memory",
    "crash_loop": "crash loop",
}


def clean(text: str, limit: int) -> str:
    """Return a name that is safe to show, at most `limit` characters."""
    text = _HOSTILE.sub("\N{REPLACEMENT CHARACTER}", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def feature_name(feature: str) -> str:
    """Return the name of a column for people: "p99 latency"."""
    return _NAMES.get(feature, clean(feature, 60).replace("_", " "))


def amount(feature: str, value: float | None) -> str:
    """Return a value with its unit: "812 ms", "2.3 %", "1.2 GiB", "–" for None."""
    if value is None or not math.isfinite(value):
        return "–"
    if feature.endswith("_share"):
        percent = 100 * value  # overflows for absurd values
        return f"{_short(percent)} %" if math.isfinite(percent) else "–"
    if feature.endswith("_ms"):
        return f"{_short(value / 1000)} s" if abs(value) >= 10_000 else f"{_short(value)} ms"
    if feature.endswith("_bytes"):
        power = min(len(_BYTES) - 1, int(math.log(abs(value), 1024)) if abs(value) >= 1 else 0)
        return f"{_short(value / 1024**power)} {_BYTES[power]}"
    return f"{_short(value)}{_UNITS.get(feature, '')}"


def subject(service: str, caller: str | None) -> str:
    """Return the measured service, or call path as "caller → service"."""
    name = clean(service, 120)
    return name if caller is None else f"{clean(caller, 120)} → {name}"


def evidence_text(evidence: Evidence) -> str:
    """Return one line: "web → cart: p99 latency 812 ms, expected 40 ms"; of a trouble with its detail."""
    where = subject(evidence.service, evidence.caller)
    what = feature_name(evidence.feature)
    if evidence.detail:
        return f"{where}: {what}, {clean(evidence.detail, 200)}"
    if evidence.seen is None and evidence.expected is None:
        return f"{where}: {what}"
    if evidence.seen is None:
        return f"{where}: {what} gone, expected {amount(evidence.feature, evidence.expected)}"
    text = f"{where}: {what} {amount(evidence.feature, evidence.seen)}"
    if evidence.expected is None:
        return text
    return f"{text}, expected {amount(evidence.feature, evidence.expected)}"


def headline(incident: Incident, name: str = "") -> str:
    """Return what happened: "p99 latency 40 ms → 812 ms", the strongest evidence of the first suspect.

    Args:
        name: of the incident since it opened; if the first suspect is another now, the text begins with it.
    """
    evidence = incident.suspects[0].evidence if incident.suspects else ()
    now = name_of(incident)
    moved = f"now suspected: {now}" if name and name != now else ""
    if not evidence:
        return moved
    suspect = incident.suspects[0]
    own = [each for each in evidence if (each.service, each.caller) == (suspect.service, suspect.caller)]
    first = own[0] if own and suspect.caller is not None else evidence[0]
    what = feature_name(first.feature)
    if first.detail:
        what = f"{what}, {clean(first.detail, 200)}"
    elif first.expected is not None:
        seen = "gone" if first.seen is None else amount(first.feature, first.seen)
        what = f"{what} {amount(first.feature, first.expected)} → {seen}"
    elif first.seen is not None:
        what = f"{what} {amount(first.feature, first.seen)}"
    if (first.service, first.caller) != (suspect.service, suspect.caller):
        what = f"{what} ({subject(first.service, first.caller)})"
    return f"{moved}: {what}" if moved else what


def name_of(incident: Incident) -> str:
    """Return the first suspect."""
    if not incident.suspects:
        return "The mesh"
    return subject(incident.suspects[0].service, incident.suspects[0].caller)


def summary(incident: Incident, name: str = "") -> str:
    """Return one line that describes an incident.

    Args:
        name: of the incident since it opened; if the first suspect is another now, both are in the text.
    """
    if not incident.suspects:
        return "The mesh behaves unusually"
    now, what = name_of(incident), headline(incident, name)
    where = name or now
    others = len(_likely(incident.suspects)) - 1
    text = where if not what else f"{where}, {what}" if where != now else f"{where}: {what}"
    return f"{text} (and {others} more suspect{'s' if others > 1 else ''})" if others else text


def suspects_text(suspects: tuple[Suspect, ...], *, most: int, evidence: int) -> str:
    """Return ranked suspects with their evidence, one line each; without those whose share is 0 %."""
    lines = []
    total = _total(suspects)
    suspects = _likely(suspects)
    for rank, suspect in enumerate(suspects[:most], 1):
        share = f"{100 * suspect.score / total:.0f} % of the evidence"
        lines.append(f"{rank}. {subject(suspect.service, suspect.caller)} ({share})")
        lines += [f"   {evidence_text(each)}" for each in suspect.evidence[:evidence]]
    if len(suspects) > most:
        lines.append(f"and {len(suspects) - most} more")
    return "\n".join(lines)


def _total(suspects: tuple[Suspect, ...]) -> float:
    return sum(suspect.score for suspect in suspects) or 1.0


def _likely(suspects: tuple[Suspect, ...]) -> tuple[Suspect, ...]:
    """Return the suspects with a share of the evidence, in whole percent, and always the first."""
    total = _total(suspects)
    return suspects[:1] + tuple(each for each in suspects[1:] if 100 * each.score / total > 0.5)


def _short(value: float) -> str:
    """Return three significant digits, without an exponent."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
