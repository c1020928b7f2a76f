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
#: Labels that identify an incident; settings may not replace them.
OWN_LABELS = ("alertname", "incident", "service", "namespace")
_MAX_LABEL = 200
_MAX_ANNOTATION = 4000
_SUSPECTS, _EVIDENCE = 5, 4


class Alert(msgspec.Struct):
    """The alert of one incident.

    Attributes:
        incident: as of the newest verdict.
        labels: its identity; created once.
        name: the first suspect when it opened; "" if there was none.
        end_s: when the incident ended; None while it is open.
        end_accepted_by: names of the Alertmanagers that accepted its end.
    """

    incident: Incident
    labels: dict[str, str]
    name: str
    end_s: float | None = None
    end_accepted_by: set[str] = set()

    def posted(self, now_s: float, until_s: float, page_url: str) -> dict[str, Any]:
        """Return the alert in the form that Alertmanager accepts.

        Args:
            now_s: the time.
            until_s: when Alertmanager resolves the alert if it is not posted again.
            page_url: URL of the page; "" if there is no page.
        """
        # Alertmanager refuses an alert that ends before it begins, which a clock set back would create.
        start_s = min(self.incident.start_s, now_s - 0.001)
        end_s = until_s if self.end_s is None else max(min(self.end_s, now_s), start_s + 0.001)
        annotations = {
            "summary": clean(summary(self.incident, self.name), 500),
            "suspects": _bounded(suspects_text(self.incident.suspects, most=_SUSPECTS, evidence=_EVIDENCE)),
            "peak_score": f"{self.incident.peak_score:.2f}",
        }
        body = {"labels": self.labels, "startsAt": _time(start_s), "endsAt": _time(end_s)}
        if page_url:
            link = f"{page_url.rstrip('/')}/#incident={clean(self.incident.id, _MAX_LABEL)}"
            annotations["link"] = body["generatorURL"] = link
        return {**body, "annotations": {name: text for name, text in annotations.items() if text}}


def alert_of(incident: Incident, extra: Mapping[str, str]) -> Alert:
    """Create the alert of an incident that opens.

    Args:
        incident: its first suspect gives the labels `service` and `namespace`.
        extra: labels that every alert has.
    """
    labels = {"alertname": ALERT_NAME, **extra, "incident": clean(incident.id, _MAX_LABEL)}
    if incident.suspects:
        service = incident.suspects[0].service
        labels["service"] = clean(service, _MAX_LABEL)
        labels["namespace"] = clean(namespace_of(service), _MAX_LABEL)
    # Alertmanager drops empty labels, and refuses an alert with no other label.
    labels = {name: value for name, value in labels.items() if value}
    return Alert(incident, labels, name_of(incident) if incident.suspects else "")


def _bounded(text: str) -> str:
    return text if len(text) <= _MAX_ANNOTATION else text[: _MAX_ANNOTATION - 1] + "…"


def _time(seconds: float) -> str:
    """RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
