"""An incident as an alert of Alertmanager: labels that never change, annotations that do.

Alertmanager identifies an alert by its labels. So the labels of an incident are created once, when it
opens, and never change, even if the order of its suspects does.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from hopline_mesh.incident import Incident
from hopline_mesh.out.words import clean, name_of, summary, suspects_text
from hopline_mesh.roster import namespace_of

ALERT_NAME = "MeshAnomaly"
_MAX_LABEL = 200
_MAX_ANNOTATION = 4000
_SUSPECTS, _EVIDENCE = 5, 4


class Alert(msgspec.Struct):
    """The alert of one incident.

    Attributes:
        id: of the incident.
        labels: its identity; created once.
        annotations: as of the newest verdict.
        start_s: Unix seconds.
        end_s: when the incident ended; None while it is open.
        end_accepted_by: names of the Alertmanagers that accepted its end.
        name: the first suspect when it opened.
    """

    id: str
    labels: dict[str, str]
    annotations: dict[str, str]
    start_s: float
    end_s: float | None = None
    end_accepted_by: set[str] = set()
    name: str = ""

    def update(self, incident: Incident, page_url: str) -> None:
        """Set the annotations from the newest verdict. Labels do not change."""
        self.annotations = annotations_of(incident, page_url, self.name)

    def posted(self, now_s: float, until_s: float) -> dict[str, Any]:
        """Return the alert in the form that Alertmanager accepts.

        Args:
            now_s: the time.
            until_s: when Alertmanager resolves the alert if it is not posted again.
        """
        # Alertmanager refuses an alert that ends before it begins, which a clock set back would create.
        start_s = min(self.start_s, now_s - 0.001)
        end_s = until_s if self.end_s is None else max(min(self.end_s, now_s), start_s + 0.001)
        body = {
            "labels": self.labels,
            "annotations": self.annotations,
            "startsAt": _time(start_s),
            "endsAt": _time(end_s),
        }
        if link := self.annotations.get("link"):
            body["generatorURL"] = link
        return body


def alert_of(incident: Incident, extra: Mapping[str, str], page_url: str) -> Alert:
    """Create the alert of an incident that opens.

    Args:
        incident: its first suspect gives the labels `service` and `namespace`.
        extra: labels that every alert has.
        page_url: URL of the page; "" if there is no page.
    """
    labels = {"alertname": ALERT_NAME, **extra, "incident": clean(incident.id, _MAX_LABEL)}
    if incident.suspects:
        service = incident.suspects[0].service
        labels["service"] = clean(service, _MAX_LABEL)
        if namespace := namespace_of(service):
            labels["namespace"] = clean(namespace, _MAX_LABEL)
    # Alertmanager drops empty labels, and refuses an alert with no other label.
    labels = {name: value for name, value in labels.items() if value}
    name = name_of(incident) if incident.suspects else ""
    found = annotations_of(incident, page_url, name)
    return Alert(incident.id, labels, found, incident.start_s, name=name)


def annotations_of(incident: Incident, page_url: str, name: str = "") -> dict[str, str]:
    """Return the annotations of an incident as of now.

    Args:
        name: see `summary`.
    """
    found = {
        "summary": clean(summary(incident, name), 500),
        "suspects": _bounded(suspects_text(incident.suspects, most=_SUSPECTS, evidence=_EVIDENCE)),
        "peak_score": f"{incident.peak_score:.2f}",
    }
    if page_url:
        found["link"] = f"{page_url.rstrip('/')}/#incident={clean(incident.id, _MAX_LABEL)}"
    return {name: value for name, value in found.items() if value}


def _bounded(text: str) -> str:
    return text if len(text) <= _MAX_ANNOTATION else text[: _MAX_ANNOTATION - 1] + "…"


def _time(seconds: float) -> str:
    """RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
