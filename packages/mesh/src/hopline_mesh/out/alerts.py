"""Sends incidents to Alertmanagers: fires alerts, repeats them every interval, resolves them at the end.

The watch passes each verdict to `send`, which only queues alerts. One task for each Alertmanager posts
them, so a slow Alertmanager delays neither the watch nor another Alertmanager.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from hopline.errors import HoplineError
from hopline_mesh.errors import StateDamaged
from hopline_mesh.incident import Verdict
from hopline_mesh.out.alert import Alert, alert_of
from hopline_mesh.out.alertmanager import Alertmanager
from hopline_mesh.out.metrics import MeshMetrics
from hopline_mesh.server_access import warn_of_token
from hopline_mesh.settings import MeshSettings

logger = logging.getLogger(__name__)

#: Maximum number of alerts at a time; above it the newest incidents are only on the page.
MAX_ALERTS = 256
#: How long posting the end of an alert is retried; by then Alertmanager has resolved the alert itself.
_KEEP_END_S = 3600.0
#: How long an accepted end is posted again, as Prometheus does: an Alertmanager that restarts before it
#: sends the notification has forgotten the end.
_REPEAT_END_S = 900.0
#: Seconds before the first retry of a failed post; each further pause is twice as long.
_FIRST_PAUSE_S = 0.5


class Alerts:
    """Sends incidents to Alertmanagers as alerts.

    Args:
        targets: each gets every alert; may be empty.
        interval_s: seconds from one verdict to the next.
        timeout_s: Alertmanager resolves an alert this long after the last post, for a watch that died; at
            least 3 intervals. A restart within that time has no effect.
        labels: labels of every alert, in addition to `alertname`, `incident`, `service` and `namespace`.
        page_url: URL of the page; "" leaves links out.
        clock: Unix seconds.

    Attributes:
        metrics: count posts.
    """

    def __init__(
        self,
        targets: Sequence[Alertmanager] = (),
        *,
        interval_s: float = 15.0,
        timeout_s: float = 240.0,
        labels: Mapping[str, str] | None = None,
        page_url: str = "",
        metrics: MeshMetrics | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._timeout_s = max(3 * interval_s, timeout_s)
        self._labels = labels or {}
        self._page_url = page_url
        self.metrics = metrics or MeshMetrics()
        self._clock = clock
        self._alerts: dict[str, Alert] = {}
        self._sent_s = 0.0
        self._senders = [_AlertSender(target, self, interval_s) for target in targets]
        self._too_many = False

    async def send(self, verdict: Verdict) -> None:
        """Queue the alerts of a verdict. Never waits for an Alertmanager and never fails.

        Call it once an interval, also for "blind" verdicts (with the open incidents): Alertmanager resolves
        alerts that are not posted again.
        """
        self._sent_s = now = self._clock()
        for incident in verdict.incidents:
            alert = self._alerts.get(incident.id)
            if alert is None:
                if incident.end_s is not None or not self._has_room():
                    continue
                alert = self._alerts[incident.id] = alert_of(incident, self._labels)
            alert.incident = incident
        named = {incident.id: incident.end_s is None for incident in verdict.incidents}
        is_unsure = verdict.state in ("blind", "learning")
        for id, alert in self._alerts.items():
            # An incident that a verdict does not name has ended, even if a restart lost it.
            if named.get(id, is_unsure and alert.end_s is None):
                alert.end_s = None
            elif alert.end_s is None:
                alert.end_s, alert.end_accepted_by = now, set()
        # Accepted alerts are kept for a while too: an incident that reopens keeps its labels.
        self._alerts = {
            id: alert
            for id, alert in self._alerts.items()
            if alert.end_s is None or 0 <= now - alert.end_s < _KEEP_END_S
        }
        for sender in self._senders:
            sender.wake()

    def export(self) -> dict[str, Any]:
        """Return the state for a restart, so that each incident keeps its identity; JSON-compatible."""
        return {"alerts": msgspec.to_builtins(list(self._alerts.values()))}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state of `export`.

        Raises:
            StateDamaged: the state has another form.
        """
        try:
            alerts = msgspec.convert(state["alerts"], list[Alert])
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise StateDamaged(f"the saved alerts cannot be read: {error}") from None
        self._alerts = {alert.incident.id: alert for alert in alerts}

    async def close(self, wait_s: float = 0.0) -> None:
        """Stop posting. Open alerts are not resolved, because a restarted watch continues them.

        Args:
            wait_s: how long running posts may take.
        """
        await asyncio.gather(*(sender.close(wait_s) for sender in self._senders))

    def outstanding(self, name: str) -> list[Alert]:
        """Return the alerts to post to an Alertmanager now."""
        repeated = self._clock() - _REPEAT_END_S
        return [
            each
            for each in self._alerts.values()
            if each.end_s is None or each.end_s > repeated or name not in each.end_accepted_by
        ]

    def posted(self, alerts: list[Alert]) -> list[dict[str, Any]]:
        """Return the body of a post."""
        now = self._clock()
        # The timeout starts at the verdict: retries must not prolong the alerts of a watch that hangs.
        until = self._sent_s + self._timeout_s
        return [alert.posted(now, until, self._page_url) for alert in alerts]

    def _has_room(self) -> bool:
        if len(self._alerts) >= MAX_ALERTS:
            self._alerts = {id: alert for id, alert in self._alerts.items() if alert.end_s is None}
        if len(self._alerts) < MAX_ALERTS:
            self._too_many = False
            return True
        if not self._too_many:
            logger.error("more than %d open incidents: further ones raise no alert", MAX_ALERTS)
        self._too_many = True
        return False


def alerts_of(settings: MeshSettings, metrics: MeshMetrics, page_url: str = "") -> Alerts:
    """Create the alerts for the settings.

    Args:
        settings: mainly `alerts`.
        metrics: counts posts.
        page_url: URL of the page; "" leaves links out.

    Raises:
        ConfigError: an address or a file is invalid.
    """
    asked = settings.alerts
    for url in asked.alertmanager_urls if asked.alertmanager_token_file is not None else ():
        warn_of_token("alertmanager_token_file", url)
    targets = [
        Alertmanager(url, token_file=asked.alertmanager_token_file, ca_file=settings.source.ca_file)
        for url in dict.fromkeys(asked.alertmanager_urls)
    ]
    labels = dict(label.split("=", 1) for label in asked.alert_labels)
    return Alerts(
        targets,
        interval_s=settings.source.interval_s,
        timeout_s=asked.alert_timeout_s,
        labels=labels,
        page_url=page_url,
        metrics=metrics,
    )


class _AlertSender:
    """Posts to one Alertmanager, in a separate task."""

    def __init__(self, alertmanager: Alertmanager, alerts: Alerts, interval_s: float) -> None:
        self._name = alertmanager.name
        self._alertmanager = alertmanager
        self._alerts = alerts
        self._longest_pause_s = interval_s
        self._due = asyncio.Event()
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_down = False

    def wake(self) -> None:
        """Post soon; there may be something to post."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"alerts to {self._name}")
        self._idle.clear()
        self._due.set()

    async def close(self, wait_s: float) -> None:
        """Stop the task."""
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), wait_s)
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._alertmanager.close()

    async def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            await self._due.wait()
            self._due.clear()
            if await self._post():
                pause_s = _FIRST_PAUSE_S
                if not self._due.is_set():
                    self._idle.set()
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), pause_s)
            self._due.set()
            pause_s = min(2 * pause_s, self._longest_pause_s)

    async def _post(self) -> bool:
        """Post what is outstanding; returns whether it was accepted."""
        alerts = self._alerts.outstanding(self._name)
        if not alerts:
            return True
        ended = [alert for alert in alerts if alert.end_s is not None]
        try:
            await self._alertmanager.post(self._alerts.posted(alerts))
        except Exception as error:  # the task must survive any failure of a post
            self._alerts.metrics.alerts_failed(self._name).inc()
            if not self._is_down:  # logged once, not at every retry
                known = isinstance(error, HoplineError)
                logger.warning("%s; the watch keeps retrying", error, exc_info=not known)
            self._is_down = True
            return False
        for alert in ended:
            alert.end_accepted_by.add(self._name)
        self._alerts.metrics.alerts_sent(self._name).inc(len(alerts))
        if self._is_down:
            logger.info("Alertmanager %s accepts alerts again", self._name)
            self._is_down = False
        return True
