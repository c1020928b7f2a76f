"""Budgets from counters, against counts that the test made itself, and against Prometheus's own answers."""

import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hopline.cli import build_app
from hopline.observe.metrics import LATENCY_BUCKETS, Metrics
from hopline_brokers.stream.meters import StreamMetrics
from hopline_slo import promql
from hopline_slo.burn import count, latency_buckets, over_window, quantile, since_start, within
from hopline_slo.objectives import Objective, read_objectives
from hopline_slo.prometheus import Prometheus
from hopline_slo.promql import PACES, write_rules
from hopline_slo.scrape import Scrape
from tests.prometheus_server import prometheus, promtool

SLO = """
[models.risk]
p99_ms = 5
availability = 0.99
error_rate = 0.001
window = "3d"
[models.quiet]
availability = 0.999
"""


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "slo.toml"
    file.write_text(SLO)
    return file


def served(ok=9900, overloaded=50, failed=20, callers=500, slow=0.004, slow_share=0.02):
    """A server's metrics after this traffic on two versions."""
    metrics = Metrics()
    for version in ("1", "2"):
        model = metrics.model("risk", version)
        for code, number in (
            ("ok", ok),
            ("overloaded", overloaded),
            ("runtime_failure", failed),
            ("bad_request", callers),
            ("cancelled", callers),
        ):
            model.outcome(code, number // 2)
        for number in range(ok // 2):
            model.total.observe(0.15 if number < slow_share * ok / 2 else slow)
    return metrics


def test_budgets_count_what_the_promise_is_about(file):
    scrape = Scrape(served().render().decode())
    slow, available, failing, quiet = since_start(scrape, read_objectives(file))
    assert (slow.requests, slow.bad_share) == (9900, pytest.approx(0.02))
    assert slow.is_burnt
    assert slow.measured == pytest.approx(1000 * quantile(latency_buckets(scrape, "risk"), 0.99))
    assert (available.requests, available.bad_share) == (9970, pytest.approx(70 / 9970))
    assert available.measured == pytest.approx(9900 / 9970)
    assert available.budget_left == pytest.approx(1 - 70 / 9970 / 0.01)
    assert not available.is_burnt
    assert failing.bad_share == pytest.approx(20 / 9970)
    assert failing.is_burnt
    assert (quiet.requests, quiet.measured, quiet.budget_left) == (0, None, 1)


def test_a_target_that_is_just_met_is_met():
    metrics = Metrics()
    metrics.model("m", "1").outcome("ok", 999)
    metrics.model("m", "1").outcome("internal", 1)
    (standing,) = since_start(
        Scrape(metrics.render().decode()), [Objective("m", "availability", 0.999, 30)]
    )
    assert standing.budget_left == pytest.approx(0, abs=1e-9)
    assert not standing.is_burnt


@given(st.lists(st.floats(1e-5, 12), min_size=1, max_size=50), st.sampled_from(LATENCY_BUCKETS))
def test_at_a_bound_of_the_histogram_the_count_is_exact(values, limit):
    metrics = Metrics()
    metrics.model("m", "1").total.observe_all(values)
    found = count(Scrape(metrics.render().decode()), Objective("m", "p99_ms", 1e3 * limit, 30))
    assert found == (len(values), sum(value > limit for value in values))


@given(st.lists(st.floats(1e-5, 9), min_size=1, max_size=50), st.floats(1e-5, 10))
def test_between_bounds_the_count_lies_between_theirs(values, limit):
    metrics = Metrics()
    metrics.model("m", "1").total.observe_all(values)
    buckets = latency_buckets(Scrape(metrics.render().decode()), "m")
    low = max((bound for bound in (0.0, *LATENCY_BUCKETS) if bound <= limit), default=0.0)
    high = min(bound for bound in LATENCY_BUCKETS if bound >= limit)
    found = within(buckets, limit)
    assert sum(v <= low for v in values) - 1e-6 <= found <= sum(v <= high for v in values) + 1e-6


FRESH = Objective("stream", "freshness_p99_ms", 100.0, 30)


def test_freshness_is_counted_from_the_streams_own_histogram():
    metrics = Metrics()
    stream = StreamMetrics(metrics)
    stream.visible(np.array([1000] * 97 + [0] * 5 + [500] * 3), 1050.0)
    (standing,) = since_start(Scrape(metrics.render().decode()), [FRESH])
    assert (standing.requests, standing.bad_share) == (100, pytest.approx(0.03))
    assert standing.is_burnt
    assert 500 < standing.measured <= 1000


def history(path, seconds, step):
    """Counters of a server over the last `seconds`: 1 % bad in the last hour, else 0.1 %."""
    now = int(time.time())
    ok = bad = 0
    samples = {"ok": [], "internal": [], "overloaded": [], "count": [], "fast": [], "slow": []}
    for at in range(now - seconds, now + 1, step):
        ok += 100 * step
        bad += (1.0 if now - at <= 3600 else 0.1) * step
        # bounds of 2, 5 and 10 ms: half of the requests below 2, the rest but 2 % between 2 and 5
        for name, value in (
            ("ok", ok),
            ("internal", bad),
            ("overloaded", 0),
            ("count", ok),
            ("fast", 0.5 * ok),
            ("slow", 0.98 * ok),
        ):
            samples[name].append((at, value))
    lines = ["# TYPE hopline_requests counter"]
    for outcome in ("ok", "internal", "overloaded"):
        labels = f'model="risk",version="1",outcome="{outcome}"'
        lines += [f"hopline_requests_total{{{labels}}} {v} {at}" for at, v in samples[outcome]]
    lines.append("# TYPE hopline_stage_seconds histogram")
    for le, name in (("0.002", "fast"), ("0.005", "slow"), ("0.01", "count"), ("+Inf", "count")):
        labels = f'model="risk",version="1",stage="total",le="{le}"'
        lines += [f"hopline_stage_seconds_bucket{{{labels}}} {v} {at}" for at, v in samples[name]]
    labels = 'model="risk",version="1",stage="total"'
    lines += [f"hopline_stage_seconds_count{{{labels}}} {v} {at}" for at, v in samples["count"]]
    path.write_text("\n".join([*lines, "# EOF"]) + "\n")


@pytest.fixture(scope="module")
def remembering(tmp_path_factory):
    """A Prometheus that remembers three days of a server."""
    root = tmp_path_factory.mktemp("prometheus")
    history(root / "history.txt", 3 * 86400 + 7200, 60)
    promtool("tsdb", "create-blocks-from", "openmetrics", root / "history.txt", root / "data")
    with prometheus(root / "data") as url:
        yield url


@pytest.mark.release
def test_prometheus_reports_budgets_over_the_window_and_burn_rates(remembering, file):
    slow, available, failing, quiet = over_window(Prometheus(remembering), read_objectives(file))
    # 71 hours at 0.1 %, one at 1 %; of 100 ok requests a second
    bad = (71 * 0.1 + 1.0) / 72
    assert available.bad_share == pytest.approx(bad / (100 + bad), rel=0.01)
    assert available.requests == pytest.approx(72 * 3600 * (100 + bad), rel=0.01)
    assert available.budget_left == pytest.approx(1 - bad / (100 + bad) / 0.01, rel=0.01)
    assert available.measured == pytest.approx(100 / (100 + bad), rel=1e-3)
    recent = 1 / 101
    rates = [each / 0.01 for each in (recent, recent, (5 * 0.1 + 1) / 6 / 100, bad / 100)]
    assert list(available.burn.values()) == pytest.approx(rates, rel=0.03)
    assert failing.is_burnt
    assert failing.burn["1h"] == pytest.approx(recent / 0.001, rel=0.03)
    assert slow.bad_share == pytest.approx(0.02, rel=0.01)
    assert 5 < slow.measured < 10
    assert (quiet.requests, quiet.measured, set(quiet.burn.values())) == (0, None, {None})


def test_a_limit_between_bounds_is_interpolated_as_from_a_scrape(remembering):
    objective = Objective("risk", "p99_ms", 4.0, 3)
    share = Prometheus(remembering).value(promql.bad_share(objective, "1h"))
    assert share == pytest.approx(
        1 - within([(0.002, 50), (0.005, 98), (0.01, 100)], 0.004) / 100, rel=0.01
    )


def run(*arguments):
    return CliRunner().invoke(build_app(["slo"]), ["slo", *map(str, arguments)])


def test_the_command_exits_with_1_when_a_budget_is_burnt(remembering, file):
    done = run("--file", file, "--prometheus", remembering, "--json")
    assert done.exit_code == 1
    answer = json.loads(done.stdout)
    assert answer["burnt"] == 2
    rows = {(row["model"], row["kind"]): row for row in answer["objectives"]}
    assert rows["risk", "error_rate"]["burnt"]
    assert not rows["risk", "availability"]["burnt"]
    assert set(rows["risk", "p99_ms"]["burn"]) == {"5m", "1h", "6h", "3d"}
    shown = run("--file", file, "--prometheus", remembering)
    assert "burn 5m" in shown.stdout.replace("\n", " ") or "burn" in shown.stdout
    file.write_text("[models.risk]\navailability = 0.99\n")
    assert run("--file", file, "--prometheus", remembering).exit_code == 0


def test_rules_of_the_file_are_rules_to_promtool_and_fire_when_the_budget_burns(tmp_path, file):
    rules = tmp_path / "slo.rules.yml"
    assert run("--file", file, "--rules", rules).exit_code == 0
    assert "SUCCESS" in promtool("check", "rules", rules)
    (tmp_path / "test.yml").write_text(
        """
rule_files: [slo.rules.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: 'hopline_requests_total{model="risk",version="1",outcome="ok"}'
        values: '0+6000x180'
      - series: 'hopline_requests_total{model="risk",version="1",outcome="internal"}'
        values: '0+0x90 0+60x90'
    alert_rule_test:
      - eval_time: 80m
        alertname: HoplineBudgetBurns
        exp_alerts: []
      - eval_time: 170m
        alertname: HoplineBudgetBurns
        exp_alerts:
          - exp_labels: {severity: page, window: 1h, model: risk, objective: error_rate}
            exp_annotations: {summary: "risk: error rate ≤ 0.1 % burns 2% of its budget in 1h"}
"""
    )
    promtool("test", "rules", "test.yml", cwd=tmp_path)


def test_odd_model_names_stay_one_string_in_rules(tmp_path):
    rules = tmp_path / "odd.yml"
    objectives = [Objective('a "b" \\ {c}', kind, 0.1, 7) for kind in ("p99_ms", "availability")]
    rules.write_text(write_rules(objectives))
    promtool("check", "rules", rules)


def test_rules_of_a_freshness_objective_fire_when_events_come_late(tmp_path):
    (tmp_path / "slo.rules.yml").write_text(write_rules([FRESH]))
    (tmp_path / "test.yml").write_text(
        """
rule_files: [slo.rules.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'hopline_stream_freshness_seconds_count', values: '0+600x180'}
      - {series: 'hopline_stream_freshness_seconds_bucket{le="0.1"}', values: '0+600x90 0+300x90'}
    alert_rule_test:
      - {eval_time: 80m, alertname: HoplineBudgetBurns, exp_alerts: []}
      - eval_time: 170m
        alertname: HoplineBudgetBurns
        exp_alerts:
          - exp_labels: {severity: page, window: 1h, model: stream, objective: freshness_p99_ms}
            exp_annotations: {summary: "stream: freshness p99 ≤ 100 ms burns 2% of its budget in 1h"}
          - exp_labels: {severity: page, window: 6h, model: stream, objective: freshness_p99_ms}
            exp_annotations: {summary: "stream: freshness p99 ≤ 100 ms burns 5% of its budget in 6h"}
          - exp_labels: {severity: ticket, window: 1d, model: stream, objective: freshness_p99_ms}
            exp_annotations: {summary: "stream: freshness p99 ≤ 100 ms burns 10% of its budget in 1d"}
          - exp_labels: {severity: ticket, window: 3d, model: stream, objective: freshness_p99_ms}
            exp_annotations: {summary: "stream: freshness p99 ≤ 100 ms burns 10% of its budget in 3d"}
"""
    )
    promtool("test", "rules", "test.yml", cwd=tmp_path)


def test_paces_are_those_of_the_workbook_for_thirty_days():
    assert [pace.rate(30) for pace in PACES] == pytest.approx([14.4, 6, 3, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "http://x", "--prometheus", "http://y"], "pass either --url"),
        (["--url", "http://x", "--rules", "-"], "only writes rules"),
    ],
)
def test_what_to_measure_must_be_said_once(file, arguments, message):
    done = run("--file", file, *arguments)
    assert message in str(done.exception)


def test_a_server_that_is_not_there_is_named(file):
    for arguments in (["--url", "http://127.0.0.1:1"], ["--prometheus", "http://127.0.0.1:1"]):
        assert "127.0.0.1:1" in str(run("--file", file, *arguments).exception)
