"""Incidents to Alertmanagers: fired, told again every interval while they go on, resolved at the end.

The watch hands each verdict to `send`, which only notes what is to be told; one task for each Alertmanager
tells it, so that one that hangs holds up neither the watch nor another one.
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
from hopline_mesh.out.alertmanager import Alertmanager, AlertmanagerTarget
from hopline_mesh.out.metrics import MeshMetrics
from hopline_mesh.settings import MeshSettings

logger = logging.getLogger(__name__)

#: Alerts that are told at a time; beyond it the newest incidents are only on the page.
MAX_ALERTS = 256
#: How long an end is kept, and told to an Alertmanager that does not take it: there it ended by itself.
_KEEP_END_S = 3600.0
#: Seconds before a failed post is tried again: the first pause; each one is twice the one before.
_FIRST_PAUSE_S = 0.5


class Alerts:
    """Tells Alertmanagers of incidents.

    Args:
        targets: all of them get every alert; may be empty.
        interval_s: seconds from one verdict to the next.
        hold_s: an alert ends by itself so long after it was last told, for a watch that died. At least 3
            intervals; None is 4 intervals or 4 minutes, as Prometheus does it for its own rules, so that a
            restart in between is not seen.
        labels: that every alert has besides `alertname`, `incident`, `service` and `namespace`.
        page_url: where people find the page; "" leaves links out.
        metrics: where posts are counted.
        clock: Unix seconds.
    """

    def __init__(
        self,
        targets: Sequence[AlertmanagerTarget] = (),
        *,
        interval_s: float = 15.0,
        hold_s: float | None = None,
        labels: Mapping[str, str] | None = None,
        page_url: str = "",
        metrics: MeshMetrics | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._hold_s = max(4 * interval_s, 240.0) if hold_s is None else max(3 * interval_s, hold_s)
        self._labels = dict(labels or {})
        self._page_url = page_url
        self._metrics = metrics or MeshMetrics()
        self._clock = clock
        self._alerts: dict[str, Alert] = {}
        self._sent_s = 0.0
        self._tellers = [_Teller(Alertmanager(target), self, interval_s) for target in targets]
        self._too_many = False

    async def send(self, verdict: Verdict) -> None:
        """Tell what a verdict says, soon. Never waits for an Alertmanager and never fails.

        To be called once an interval also while nothing can be judged ("blind", with the incidents that go
        on): alerts that are not told again end by themselves.
        """
        self._sent_s = now = self._clock()
        for incident in verdict.incidents:
            alert = self._alerts.get(incident.id)
            if alert is None:
                if incident.end_s is not None or not self._has_room():
                    continue
                alert = alert_of(incident, self._labels, self._page_url)
                self._alerts[incident.id] = alert
            alert.update(incident, self._page_url)
            if incident.end_s is None:
                alert.end_s = None  # it may go on after all
                alert.told_end.clear()
            elif alert.end_s is None:
                alert.end_s = now
        if verdict.state not in ("blind", "learning"):
            # What a verdict does not name is over, also where the watch forgot it in a restart.
            named = {incident.id for incident in verdict.incidents}
            for alert in self._alerts.values():
                if alert.end_s is None and alert.id not in named:
                    alert.end_s = now
        self._forget(now)
        for teller in self._tellers:
            teller.wake()

    def export(self) -> dict[str, Any]:
        """What a restart needs, so that each incident keeps its one identity; fit for JSON."""
        return {"alerts": msgspec.to_builtins(list(self._alerts.values()))}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `export` gave.

        Raises: StateDamaged: it is something else.
        """
        try:
            alerts = msgspec.convert(state["alerts"], list[Alert])
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise StateDamaged(f"the kept alerts cannot be read: {error}") from None
        self._alerts = {alert.id: alert for alert in alerts}

    async def close(self, wait_s: float = 0.0) -> None:
        """End; what goes on is not resolved, since a restarted watch takes it up.

        Args:
            wait_s: how long posts under way may take.
        """
        await asyncio.gather(*(teller.close(wait_s) for teller in self._tellers))

    def outstanding(self, name: str) -> list[Alert]:
        """What an Alertmanager has to be told now."""
        return [each for each in self._alerts.values() if each.end_s is None or name not in each.told_end]

    def posted(self, alerts: list[Alert]) -> list[dict[str, Any]]:
        """The body of a post."""
        now = self._clock()
        # Counted from the verdict: tries to post must not keep alive what a watch that hangs left.
        return [alert.posted(now, self._sent_s + self._hold_s) for alert in alerts]

    def told(self, name: str, alerts: list[Alert], ended: set[str]) -> None:
        """An Alertmanager took these; of those in `ended` it took the end."""
        for alert in alerts:
            if alert.id in ended:
                alert.told_end.add(name)
        self._metrics.alerts_sent(name).inc(len(alerts))

    def failed(self, name: str) -> None:
        """A post failed."""
        self._metrics.alerts_failed(name).inc()

    def _has_room(self) -> bool:
        if len(self._alerts) >= MAX_ALERTS:
            for alert in [each for each in self._alerts.values() if each.end_s is not None]:
                del self._alerts[alert.id]
        if len(self._alerts) < MAX_ALERTS:
            self._too_many = False
            return True
        if not self._too_many:
            logger.error("more than %d incidents at a time: further ones raise no alert", MAX_ALERTS)
        self._too_many = True
        return False

    def _forget(self, now: float) -> None:
        # Those that were told are kept as well: an incident that begins anew keeps its labels.
        for alert in list(self._alerts.values()):
            if alert.end_s is not None and not 0 <= now - alert.end_s < _KEEP_END_S:
                del self._alerts[alert.id]


def alerts_of(settings: MeshSettings, metrics: MeshMetrics, page_url: str = "") -> Alerts:
    """The alerts that settings ask for.

    Args:
        settings: `alerts` above all.
        metrics: where posts are counted.
        page_url: where the page is, for settings that do not say where people find it.

    Raises: ConfigError: an address or files that cannot be used.
    """
    asked = settings.alerts
    targets = [
        AlertmanagerTarget(url, token_file=asked.alertmanager_token_file, ca_file=settings.source.ca_file)
        for url in dict.fromkeys(asked.alertmanager_urls)
    ]
    labels = dict(label.split("=", 1) for label in asked.alert_labels)
    return Alerts(
        targets,
        interval_s=settings.source.interval_s,
        hold_s=asked.alert_hold_s,
        labels=labels,
        page_url=asked.page_url or page_url,
        metrics=metrics,
    )


class _Teller:
    """Tells one Alertmanager, in a task of its own."""

    def __init__(self, alertmanager: Alertmanager, alerts: Alerts, interval_s: float) -> None:
        self.name = alertmanager.name
        self._alertmanager = alertmanager
        self._alerts = alerts
        self._longest_pause_s = interval_s
        self._due = asyncio.Event()
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_down = False

    def wake(self) -> None:
        """There may be something to tell."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"alerts to {self.name}")
        self._idle.clear()
        self._due.set()

    async def close(self, wait_s: float) -> None:
        """End the task."""
        if self._task is not None:
            if wait_s:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._idle.wait(), wait_s)
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._alertmanager.close()

    async def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            if not self._due.is_set():
                self._idle.set()
            await self._due.wait()
            self._due.clear()
            try:
                await self._tell()
            except HoplineError as error:
                self._failed(str(error))
            except Exception as error:  # the task must outlive whatever one post runs into
                logger.exception("posting to Alertmanager %s failed", self.name)
                self._failed(str(error))
            else:
                pause_s = _FIRST_PAUSE_S
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), pause_s)
            self._due.set()
            pause_s = min(2 * pause_s, self._longest_pause_s)

    async def _tell(self) -> None:
        alerts = self._alerts.outstanding(self.name)
        if not alerts:
            return
        ended = {alert.id for alert in alerts if alert.end_s is not None}
        await self._alertmanager.post(self._alerts.posted(alerts))
        self._alerts.told(self.name, alerts, ended)
        if self._is_down:
            logger.info("Alertmanager %s takes alerts again", self.name)
            self._is_down = False

    def _failed(self, reason: str) -> None:
        self._alerts.failed(self.name)
        if not self._is_down:  # told once, not at every try
            logger.warning("%s; alerts are kept and tried again", reason)
        self._is_down = True
