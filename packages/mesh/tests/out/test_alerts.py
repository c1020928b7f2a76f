"""Alerts against servers that fail, hang and refuse; times by a fake clock."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from hopline.errors import ConfigError
from hopline_mesh.errors import StateDamaged
from hopline_mesh.out.alertmanager import Alertmanager
from hopline_mesh.out.alerts import MAX_ALERTS, Alerts, alerts_of
from hopline_mesh.out.metrics import MeshMetrics
from hopline_mesh.settings import load_settings
from packages.mesh.tests.out.drawn import incident, verdict
from packages.mesh.tests.out.scripted_alertmanager import scripted


class Clock:
    def __init__(self, now: float = 10_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


async def test_going_on_is_reported_each_interval_and_ends_three_intervals_ahead() -> None:
    clock = Clock()
    async with scripted() as server:
        alerts = Alerts([Alertmanager(server.url)], interval_s=15, timeout_s=1, clock=clock)
        for told in range(1, 4):
            await alerts.send(verdict(clock.now, incident(start_s=9_990.0)))
            ((alert,),) = (await server.wait_for(told))[told - 1 :]
            assert seconds(alert["startsAt"]) == 9_990.0
            assert seconds(alert["endsAt"]) == clock.now + 45
            clock.now += 15
        assert len({json.dumps(alert["labels"]) for (alert,) in server.posts}) == 1
        await alerts.close()


async def test_end_is_reported_until_it_is_taken_and_repeated_for_15_minutes() -> None:
    clock = Clock()
    async with scripted() as server:
        alerts = Alerts([Alertmanager(server.url)], interval_s=0.01, clock=clock)
        await alerts.send(verdict(clock.now, incident(start_s=9_990.0)))
        await server.wait_for(1)
        server.status = 500
        clock.now += 15
        await alerts.send(verdict(clock.now, incident(start_s=9_990.0, end_s=clock.now)))
        ended = clock.now
        await server.wait_for(3)
        server.status = 200
        clock.now += 15
        posts = await server.wait_for(len(server.posts) + 1)
        assert seconds(posts[-1][0]["endsAt"]) == ended
        await asyncio.sleep(0.05)
        taken = len(server.posts)
        clock.now = ended + 899
        # Also by a watch that was restarted: an Alertmanager may have forgotten an end that it accepted.
        again = Alerts([Alertmanager(server.url)], interval_s=0.01, clock=clock)
        again.restore(json.loads(json.dumps(alerts.export())))
        await alerts.close()
        await again.send(verdict(clock.now))
        posts = await server.wait_for(taken + 1)
        assert seconds(posts[-1][0]["endsAt"]) == ended
        clock.now = ended + 901
        await again.send(verdict(clock.now))
        await asyncio.sleep(0.1)
        assert len(server.posts) == taken + 1
        await again.close()


async def test_one_that_hangs_holds_up_neither_the_watch_nor_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = MeshMetrics()
    async with scripted() as hanging, scripted() as fine, scripted() as refusing:
        hanging.status, refusing.status = 0, 400
        targets = [Alertmanager(each.url, timeout_s=0.2) for each in (hanging, fine, refusing)]
        alerts = Alerts(targets, interval_s=0.1, metrics=metrics)
        await alerts.send(verdict(0, incident()))
        assert not fine.posts  # it waits for no answer
        await fine.wait_for(1)
        await hanging.wait_for(2)
        await refusing.wait_for(2)
        await alerts.send(verdict(15, incident()))
        await fine.wait_for(2)
        await asyncio.sleep(0.05)
        text = metrics.render().decode()
        assert f'hopline_mesh_alerts_sent_total{{alertmanager="{fine.url[:-1]}"}} 2' in text
        for each in (hanging, refusing):
            assert metrics.alerts_failed(each.url[:-1]).value >= 1
            assert metrics.alerts_sent(each.url[:-1]).value == 0
        warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert len(warned) == 2, "told once, not at every try"
        assert any("did not respond within 0.2 s" in each for each in warned)
        assert any("returned status 400: why?" in each for each in warned)
        await alerts.close()


async def test_blind_and_learning_verdicts_end_nothing() -> None:
    alerts = Alerts(clock=Clock())
    await alerts.send(verdict(0, incident()))
    await alerts.send(verdict(15, state="blind"))
    await alerts.send(verdict(30, state="learning"))
    (alert,) = alerts.outstanding("any")
    assert alert.end_s is None
    await alerts.send(verdict(45))
    assert alert.end_s == 10_000.0


async def test_incident_that_is_over_before_it_was_seen_raises_nothing() -> None:
    alerts = Alerts(clock=Clock())
    await alerts.send(verdict(15, incident(end_s=10.0)))
    assert alerts.outstanding("any") == []


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
async def test_clock_that_jumps_leaves_alerts_that_can_be_taken(jump_s: float) -> None:
    clock = Clock(1_700_000_000.0)
    alerts = Alerts(interval_s=15, clock=clock)
    await alerts.send(verdict(clock.now, incident(start_s=clock.now - 30)))
    clock.now += jump_s
    for each in (
        verdict(clock.now, incident(start_s=clock.now - jump_s - 30)),
        verdict(clock.now, incident(start_s=clock.now - jump_s - 30, end_s=clock.now - jump_s)),
    ):
        await alerts.send(each)
        (posted,) = alerts.posted(alerts.outstanding("any"))
        assert seconds(posted["startsAt"]) < seconds(posted["endsAt"])
    assert seconds(posted["endsAt"]) <= clock.now


async def test_more_incidents_than_anybody_reads_are_bounded() -> None:
    alerts = Alerts(clock=Clock())
    many = [incident(f"i-{number}") for number in range(MAX_ALERTS + 50)]
    await alerts.send(verdict(0, *many))
    assert len(alerts.outstanding("any")) == MAX_ALERTS


@pytest.mark.parametrize("state", [{}, {"alerts": 3}, {"alerts": [{"id": 1}]}, []])
def test_state_that_is_something_else_is_reported(state: object) -> None:
    with pytest.raises(StateDamaged, match="saved alerts"):
        Alerts().restore(state)  # type: ignore[arg-type]


async def test_settings_name_the_receivers_of_alerts(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    async with scripted() as server:
        settings = load_settings(
            flags={
                "alertmanager_urls": (server.url,),
                "alertmanager_token_file": token,
                "alert_labels": ("severity=page", "team=a=b"),
            }
        )
        alerts = alerts_of(settings, MeshMetrics(), "https://mesh.example")
        await alerts.send(verdict(0, incident()))
        ((alert,),) = await server.wait_for(1)
        assert "authorization: bearer s3cret" in server.headers.lower()
        assert alert["labels"] == {
            "alertname": "MeshAnomaly",
            "severity": "page",
            "team": "a=b",
            "incident": "i-1",
            "service": "shop/cart",
            "namespace": "shop",
        }
        assert alert["generatorURL"] == "https://mesh.example/#incident=i-1"
        await alerts.close()


async def test_password_in_the_address_is_sent_as_basic_auth_and_shown_nowhere() -> None:
    metrics = MeshMetrics()
    async with scripted() as server:
        url = server.url.replace("//", "//ops:pass%40word@")
        alerts = Alerts([Alertmanager(url)], metrics=metrics)
        await alerts.send(verdict(0, incident()))
        await server.wait_for(1)
        assert "authorization: basic b3bzonbhc3nad29yza==" in server.headers.lower()  # ops:pass@word
        await asyncio.sleep(0.05)
        assert "pass" not in metrics.render().decode()
        await alerts.close()


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://[::1"])
def test_address_that_is_none_is_reported(url: str) -> None:
    with pytest.raises(ConfigError, match="alertmanager_urls"):
        Alerts([Alertmanager(url)])


def test_certificates_that_are_none_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read as PEM certificates"):
        Alerts([Alertmanager("https://host", ca_file=tmp_path / "absent.pem")])


async def test_certificate_is_checked(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += [
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=alertmanager",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    metrics = MeshMetrics()
    async with scripted(context) as server:
        unknown = Alerts([Alertmanager(server.url)], metrics=metrics)
        await unknown.send(verdict(0, incident()))
        async with asyncio.timeout(10):
            while not metrics.alerts_failed(server.url[:-1]).value:  # noqa: ASYNC110 - a counter
                await asyncio.sleep(0.01)
        assert server.posts == []
        await unknown.close()
        known = Alerts([Alertmanager(server.url, ca_file=cert)])
        await known.send(verdict(0, incident()))
        await server.wait_for(1)
        await known.close()
