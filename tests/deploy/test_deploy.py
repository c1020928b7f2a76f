"""What stands in deploy/: Prometheus takes it, it names metrics that there are, and it works on servers."""

import json
import re
import time
from pathlib import Path

import httpx
import pytest

from hopline_slo import promql
from hopline_slo.objectives import NOT_VALID, REFUSALS
from tests.prometheus_server import prometheus, promtool
from tests.servers import running

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "hopline.rules.yml"
DASHBOARD = DEPLOY / "grafana" / "hopline.json"


def dashboard():
    return json.loads(DASHBOARD.read_text())


def expressions():
    """Every expression of the dashboard, with the place where it stands."""
    board = dashboard()
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["definition"]
    for note in board["annotations"]["list"]:
        yield note["name"], note["expr"]


def declared():
    """Names of all metrics that some file of the source declares."""
    folders = ROOT / "src", *ROOT.glob("packages/*/src")
    source = "".join(file.read_text() for each in folders for file in each.rglob("*.py"))
    return set(re.findall(r'"(hopline_[a-z0-9_]+)"', source))


def base(name):
    return re.sub(r"_(bucket|sum|count)$", "", name)


def named(text):
    """Names of metrics of servers in a text; those with colons come from recording rules."""
    return set(re.findall(r"(?<![\w:])hopline_[a-z0-9_]+", text))


@pytest.mark.release
def test_promtool_takes_rules_their_tests_and_the_example():
    folder = DEPLOY / "prometheus"
    assert "SUCCESS" in promtool("check", "rules", RULES)
    assert "SUCCESS" in promtool("test", "rules", "hopline.rules.test.yml", cwd=folder)
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml", cwd=folder)


def test_every_alert_has_a_test():
    alerts = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
    tested = (DEPLOY / "prometheus" / "hopline.rules.test.yml").read_text()
    assert alerts == set(re.findall(r"alertname: (\w+)", tested))


@pytest.mark.parametrize("place", ["rules", "dashboard"])
def test_every_metric_that_is_named_is_one_that_hopline_has(place):
    text = RULES.read_text() if place == "rules" else "\n".join(expr for _, expr in expressions())
    known = declared()
    found = named(text)
    assert len(found) > 10
    assert {name for name in found if name not in known and base(name) not in known} == set()


def test_every_recording_that_is_used_is_one_that_is_made():
    rules = RULES.read_text()
    made = set(re.findall(r"- record: (\S+)", rules))
    used = set(re.findall(r"hopline:\w+:\w+", rules + "".join(expr for _, expr in expressions())))
    assert used == made


def test_rules_sort_outcomes_as_the_code_does():
    sets = set(re.findall(r'outcome!~"([^"]+)"', RULES.read_text()))
    wanted = (NOT_VALID, NOT_VALID | {"ok"}, NOT_VALID | REFUSALS | {"ok"})
    assert sets == {"|".join(sorted(each)) for each in wanted}


def test_rules_alert_at_the_paces_of_slo_rules():
    found = re.findall(
        r"rate(\w+) > ([\d.]+) and hopline:bad_ratio:rate(\w+) > ([\d.]+)", RULES.read_text()
    )
    wanted = [(p.long, p.rate(30) * 0.001, p.short) for p in promql.PACES]
    assert [(a, float(b), c) for a, b, c, _ in found] == [(a, pytest.approx(b), c) for a, b, c in wanted]
    assert all(b == d for _, b, _, d in found)


def test_the_dashboard_is_whole():
    board = dashboard()
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {variable["name"] for variable in board["templating"]["list"]} == {
        "datasource",
        "model",
        "version",
    }
    places = set()
    for panel in panels:
        spot = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(spot["x"], spot["x"] + spot["w"])
            for y in range(spot["y"], spot["y"] + spot["h"])
        }
        assert not places & cells, panel["title"]
        assert spot["x"] + spot["w"] <= 24
        places |= cells


def test_a_real_prometheus_takes_every_expression_and_sees_a_server(tmp_path):
    scrape = (
        "global: {scrape_interval: 200ms, evaluation_interval: 200ms}\n"
        "rule_files: [rules.yml]\n"
        "scrape_configs: [{job_name: hopline, static_configs: [{targets: ['%s']}]}]\n"
    )
    # the alert on servers that do not answer, without its patience
    rules = RULES.read_text().replace("for: 1m", "for: 0s")
    with running() as server:
        config = scrape % server.address
        with prometheus(tmp_path / "data", config, files={"rules.yml": rules}) as url:

            def query(text):
                answer = httpx.post(f"{url}/api/v1/query", data={"query": text}).json()
                assert answer["status"] == "success", (text, answer.get("error"))
                return answer["data"]["result"]

            for place, text in expressions():
                if place not in ("model", "version"):  # label_values is Grafana's own
                    text = text.replace("$__rate_interval", "1m").replace('"$model"', '".*"')
                    query(text.replace('"$version"', '".*"'))
            end = time.monotonic() + 30
            asked = 0
            while not (found := query("hopline:requests:rate5m{outcome='ok',model='sage'} > 0")):
                answer = httpx.post(f"{server.url}/v1/models/sage/score", json={"nodes": [1]})
                assert answer.status_code == 200
                asked += 1
                assert time.monotonic() < end, "the recording rule saw no requests"
                time.sleep(0.05)
            assert {"model": "sage", "version": "2", "outcome": "ok"}.items() <= found[0]["metric"].items()
            firing = "ALERTS{alertname='HoplineDown',alertstate='firing'}"
            assert not query(firing)
            server.process.terminate()
            end = time.monotonic() + 30
            while not query(firing):
                assert time.monotonic() < end, "nobody was told that the server is gone"
                time.sleep(0.1)
