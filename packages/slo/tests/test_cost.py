"""What requests cost, from a server's counters, against the arithmetic of the test."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from hopline.cli import build_app
from hopline.config.reader import load_config
from hopline.observe.metrics import Metrics
from hopline_slo.cost import attributed_share, costs
from hopline_slo.scrape import Scrape


def served(**prices):
    """Metrics of a server with two models, one of which computes on a GPU."""
    metrics = Metrics()
    settings = load_config(overrides={f"cost.{name}": value for name, value in prices.items()}).cost
    risk, pictures = metrics.model("risk", "1"), metrics.model("pictures", "2")
    risk.outcome("ok", 2000)
    risk.outcome("overloaded", 500)
    risk.charge(settings, 4.0)
    pictures.outcome("ok", 10)
    pictures.charge(settings, 2.0, 36.0)
    return metrics


def test_costs_are_of_answered_requests():
    scrape = Scrape(served(cpu_hour=3.6, gpu_hour=36.0, currency="EUR").render().decode())
    pictures, risk = costs(scrape)
    assert (risk.requests, risk.cpu_s, risk.cpu_s_per_1k) == (2000, 4.0, 2.0)
    assert risk.cost == pytest.approx(4.0 * 3.6 / 3600)
    assert risk.cost_per_million == pytest.approx(2.0)
    assert pictures.cost == pytest.approx(2.0 * 3.6 / 3600 + 36.0 * 36.0 / 3600)
    assert (pictures.gpu_s, pictures.currency) == (36.0, "EUR")
    assert attributed_share(scrape, [risk]) == pytest.approx(
        4.0 / scrape.total("hopline_process_cpu_seconds_total")
    )


def test_without_prices_there_is_no_money():
    scrape = Scrape(served().render().decode())
    assert [(each.cost, each.cost_per_million) for each in costs(scrape)] == [(None, None)] * 2


def test_a_server_that_computed_nothing_costs_nothing():
    assert costs(Scrape(Metrics().render().decode())) == []


@pytest.fixture
def page():
    """A server that answers with what is in `text`."""
    box = {"text": b"", "status": 200}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.path == "/metrics"
            box["key"] = self.headers.get("x-api-key")
            self.send_response(box["status"])
            self.end_headers()
            self.wfile.write(box["text"])

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    box["url"] = f"http://127.0.0.1:{server.server_port}"
    yield box
    server.shutdown()
    thread.join()
    server.server_close()


def run(*arguments):
    return CliRunner().invoke(build_app(["cost"]), ["cost", *arguments])


def test_the_command_shows_a_table_or_json(page):
    page["text"] = served(cpu_hour=3.6, gpu_hour=36.0, currency="EUR").render()
    shown = run("--url", page["url"], "--api-key", "k")
    assert shown.exit_code == 0
    assert page["key"] == "k"
    assert "EUR" in shown.stdout
    assert "gpu s" in shown.stdout
    answer = json.loads(run("--url", page["url"] + "/metrics", "--json").stdout)
    assert {row["model"]: row["cpu_s_per_1k"] for row in answer["models"]} == {
        "risk": 2.0,
        "pictures": 200.0,
    }
    page["text"] = served().render()
    assert "cost.cpu_hour" in run("--url", page["url"]).stdout.replace("\n", "")


def test_a_refusal_is_reported(page):
    page["status"], page["text"] = 401, b"who are you"
    done = run("--url", page["url"])
    assert "answered 401: who are you" in str(done.exception)
    page["status"], page["text"] = 200, b"<html>"
    assert "line 1 of the metrics" in str(run("--url", page["url"]).exception)
