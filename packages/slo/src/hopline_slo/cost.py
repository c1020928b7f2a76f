"""`hopline cost`: costs of requests by model, from a server's own counters."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import typer
from rich.table import Table

from hopline.commands.connection import ApiKey, Token, Url
from hopline.commands.options import AsJson
from hopline.commands.screen import Screen, whole
from hopline_slo.scrape import Scrape, read_metrics

_CAPTION = (
    "CPU time of computing, measured on one batch in eight on the event loop and on every batch on a "
    "thread. Parsing, encoding and sockets are not attributed to models."
)


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Resources that one model version has used since its server started.

    Attributes:
        requests: answered requests.
        cpu_s, gpu_s: seconds of computing, for all of them.
        cost: in `currency`; None where no price is set.
    """

    model: str
    version: str
    requests: float
    cpu_s: float
    gpu_s: float
    cost: float | None
    currency: str

    @property
    def cpu_s_per_1k(self) -> float:
        """CPU seconds per thousand requests."""
        return 1e3 * self.cpu_s / self.requests if self.requests else 0.0

    @property
    def cost_per_million(self) -> float | None:
        """Price per million requests."""
        return 1e6 * self.cost / self.requests if self.cost is not None and self.requests else None


def costs(scrape: Scrape) -> list[ModelCost]:
    """Costs of each model version that answered a request, from `/metrics`."""
    found = []
    prices: dict[tuple[str, str], tuple[float, str]] = {}
    for reading in scrape.samples("hopline_cost_total"):
        labels = reading.labels
        prices[labels["model"], labels["version"]] = reading.value, labels["currency"]
    gpu = scrape.by("hopline_gpu_seconds_total", "model", "version")
    for (model, version), cpu_s in scrape.by("hopline_cpu_seconds_total", "model", "version").items():
        requests = scrape.total("hopline_requests_total", model=model, version=version, outcome="ok")
        cost, currency = prices.get((model, version), (None, ""))
        found.append(
            ModelCost(model, version, requests, cpu_s, gpu.get((model, version), 0.0), cost, currency)
        )
    return found


def attributed_share(scrape: Scrape, models: list[ModelCost]) -> float:
    """Share of the server's CPU time that was spent on computing for models."""
    used = scrape.total("hopline_process_cpu_seconds_total")
    return sum(each.cpu_s for each in models) / used if used else 0.0


def cost(as_json: AsJson = False, url: Url = None, api_key: ApiKey = None, token: Token = None) -> None:
    """Show what requests cost, by model, since the server started."""
    scrape = read_metrics(url, api_key, token)
    models = costs(scrape)
    share = attributed_share(scrape, models)
    if as_json:
        rows = [
            {**asdict(each), "cpu_s_per_1k": each.cpu_s_per_1k, "cost_per_million": each.cost_per_million}
            for each in models
        ]
        typer.echo(json.dumps({"models": rows, "attributed_cpu_share": share}))
        return
    console = Screen()
    console.print(whole(_table(models), "model", "version"))
    used = scrape.total("hopline_process_cpu_seconds_total")
    console.print(f"{share:.0%} of the server's {used:,.1f} CPU seconds was computing.")
    if models and all(each.cost is None for each in models):
        console.print("No prices: set cost.cpu_hour (and cost.gpu_hour) on the server to see costs.")


def _table(models: list[ModelCost]) -> Table:
    currency = next((each.currency for each in models if each.currency), "cost")
    with_gpu = any(each.gpu_s for each in models)
    table = Table("model", "version", caption=_CAPTION, caption_justify="left")
    columns = ["answered", "cpu s", "cpu s / 1,000", currency, f"{currency} / million"]
    if with_gpu:
        columns.insert(3, "gpu s")
    for name in columns:
        table.add_column(name, justify="right")
    for each in models:
        cells = [
            each.model,
            each.version,
            f"{each.requests:,.0f}",
            f"{each.cpu_s:,.2f}",
            f"{each.cpu_s_per_1k:,.3f}",
            _money(each.cost),
            _money(each.cost_per_million),
        ]
        if with_gpu:
            cells.insert(5, f"{each.gpu_s:,.2f}")
        table.add_row(*cells)
    return table


def _money(amount: float | None) -> str:
    return "–" if amount is None else f"{amount:,.3g}"
