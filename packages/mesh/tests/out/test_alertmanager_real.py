"""Alerts against a real Alertmanager and a webhook."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from hopline_mesh.incident import Incident
from hopline_mesh.out.alertmanager import Alertmanager
from hopline_mesh.out.alerts import Alerts
from packages.mesh.tests.alertmanager_server import Webhooks, alertmanager, webhooks
from packages.mesh.tests.answering import free_port
from packages.mesh.tests.out.drawn import incident, verdict

#: Long enough for a further notification of any incident to come, were there one.
QUIET_S = 0.7


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Webhooks]]:
    """One Alertmanager for all tests; their incidents have different ids."""
    folder = tmp_path_factory.mktemp("alertmanager")
    with webhooks() as hooks, alertmanager(folder, hooks.url) as url:
        yield url, hooks


def about(hooks: Webhooks, id: str) -> list[tuple[str, str]]:
    """(status, service) of the notifications of one incident."""
    return [(status, labels["service"]) for status, labels in hooks.alerts() if labels["incident"] == id]


async def until(hooks: Webhooks, id: str, count: int) -> list[tuple[str, str]]:
    end = time.monotonic() + 60
    while len(about(hooks, id)) < count:
        assert time.monotonic() < end, hooks.bodies
        await asyncio.sleep(0.02)
    await asyncio.sleep(QUIET_S)
    return about(hooks, id)


def now_incident(id: str, end_s: float | None = None, service: str = "shop/cart") -> Incident:
    return incident(id, start_s=time.time() - 30, end_s=end_s, service=service)


async def test_incident_is_one_firing_and_one_resolved_notification(shared: tuple[str, Webhooks]) -> None:
    url, hooks = shared
    alerts = Alerts([Alertmanager(url)], page_url="http://watch:9092/")
    begun = now_incident("once")
    for _ in range(3):  # told again every interval
        await alerts.send(verdict(time.time(), begun))
        await asyncio.sleep(0.05)
    assert await until(hooks, "once", 1) == [("firing", "shop/cart")]
    await alerts.send(verdict(time.time(), now_incident("once", end_s=time.time())))
    assert await until(hooks, "once", 2) == [("firing", "shop/cart"), ("resolved", "shop/cart")]
    body = next(body for body in hooks.bodies if body["alerts"][0]["labels"]["incident"] == "once")
    annotations = body["alerts"][0]["annotations"]
    assert annotations["link"] == "http://watch:9092/#incident=once"
    assert "p99 latency 40 ms → 812 ms" in annotations["summary"]
    assert annotations["suspects"].startswith("1. shop/cart")
    await alerts.close()


@pytest.mark.release
async def test_restart_in_the_middle_is_not_seen(shared: tuple[str, Webhooks]) -> None:
    url, hooks = shared
    before = Alerts([Alertmanager(url)])
    await before.send(verdict(time.time(), now_incident("restart")))
    assert await until(hooks, "restart", 1) == [("firing", "shop/cart")]
    state = before.export()
    await before.close()
    after = Alerts([Alertmanager(url)])
    after.restore(state)
    # By now another service is suspected first: that is no other incident.
    await after.send(verdict(time.time(), now_incident("restart", service="shop/db")))
    await asyncio.sleep(QUIET_S)
    assert about(hooks, "restart") == [("firing", "shop/cart")]
    await after.send(verdict(time.time()))  # over, while nobody said so
    assert await until(hooks, "restart", 2) == [("firing", "shop/cart"), ("resolved", "shop/cart")]
    await after.close()


@pytest.mark.release
async def test_incident_that_comes_back_is_the_same_alert_again(shared: tuple[str, Webhooks]) -> None:
    url, hooks = shared
    alerts = Alerts([Alertmanager(url)])
    await alerts.send(verdict(time.time(), now_incident("flap")))
    await until(hooks, "flap", 1)
    await alerts.send(verdict(time.time(), now_incident("flap", end_s=time.time())))
    await until(hooks, "flap", 2)
    await alerts.send(verdict(time.time(), now_incident("flap", service="shop/db")))
    assert await until(hooks, "flap", 3) == [
        ("firing", "shop/cart"),
        ("resolved", "shop/cart"),
        ("firing", "shop/cart"),
    ]
    await alerts.close()


async def test_hostile_names_arrive_and_harm_nobody(shared: tuple[str, Webhooks]) -> None:
    url, hooks = shared
    name = 'shop/<script>alert(1)</script>"}\n{{ .Labels }}\ud800\u202e' + "x" * 100_000
    alerts = Alerts([Alertmanager(url)])
    await alerts.send(verdict(time.time(), now_incident("hostile", service=name)))
    ((status, service),) = await until(hooks, "hostile", 1)
    assert status == "firing"
    assert len(service) == 200
    assert service.startswith('shop/<script>alert(1)</script>"}\ufffd{{ .Labels }}\ufffd\ufffdxx')
    await alerts.close()


async def test_alertmanager_that_is_down_is_reported_once_it_is_back(tmp_path: Path) -> None:
    port = free_port()
    with webhooks() as hooks:
        alerts = Alerts([Alertmanager(f"http://127.0.0.1:{port}")], interval_s=0.3)
        await alerts.send(verdict(time.time(), now_incident("down")))
        await asyncio.sleep(0.1)
        with alertmanager(tmp_path, hooks.url, port=port) as url:
            assert await until(hooks, "down", 1) == [("firing", "shop/cart")]
            async with httpx.AsyncClient() as client:
                (alert,) = (await client.get(f"{url}/api/v2/alerts")).json()
            assert alert["labels"]["alertname"] == "MeshAnomaly"
        await alerts.close()


async def test_end_is_notified_by_an_alertmanager_that_restarted_before_it_did(tmp_path: Path) -> None:
    port = free_port()
    with webhooks() as hooks:
        alerts = Alerts([Alertmanager(f"http://127.0.0.1:{port}")])
        with alertmanager(tmp_path, hooks.url, port=port, group_interval="1m"):
            await alerts.send(verdict(time.time(), now_incident("ended")))
            assert await until(hooks, "ended", 1) == [("firing", "shop/cart")]
            await alerts.send(verdict(time.time(), now_incident("ended", end_s=time.time())))
            await asyncio.sleep(QUIET_S)
            assert all(each.end_accepted_by for each in alerts._alerts.values())
        with alertmanager(tmp_path, hooks.url, port=port):
            await alerts.send(verdict(time.time()))  # the next interval
            assert await until(hooks, "ended", 2) == [("firing", "shop/cart"), ("resolved", "shop/cart")]
        await alerts.close()
