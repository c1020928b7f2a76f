"""Inputs of an autoscaler: a real Prometheus that scrapes pods, the shipped queries, and CPU use."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.fleet_phases.pods import QUOTA, Fleet, is_up, used_s
from benchmarks.server_process import free_port, stop

_DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "server"
OVERLAY = _DEPLOY / "overlays" / "autoscaled"


class Metrics:
    """Inputs of the autoscaler: the adapter's queries in Prometheus, and CPU use as of a metrics server.

    Args:
        url: of Prometheus.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        rules = yaml.safe_load((_DEPLOY / "overlays/autoscaled/adapter.yaml").read_text())["rules"][
            "custom"
        ]
        self.queries = {rule["name"]["as"]: _rendered(rule) for rule in rules}
        self._cpu: dict[str, tuple[float, float]] = {}

    def read(self, fleet: Fleet) -> dict[str, dict[str, float]]:
        """Metric -> pod -> value."""
        values = {name: self._query(query) for name, query in self.queries.items()}
        return values | {"cpu": self._cpu_percent(fleet)}

    def _query(self, query: str) -> dict[str, float]:
        url = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = json.load(answer)["data"]["result"]
        return {each["metric"]["pod"]: float(each["value"][1]) for each in found}

    def _cpu_percent(self, fleet: Fleet) -> dict[str, float]:
        """Since the last reading, of the quota."""
        percent = {}
        for pod in fleet.ready:
            used, now = used_s(pod), time.monotonic()
            before = self._cpu.get(pod.name)
            self._cpu[pod.name] = now, used
            if before is not None:
                percent[pod.name] = 100 * (used - before[1]) / (now - before[0]) / QUOTA
        return percent


def _rendered(rule: dict[str, Any]) -> str:
    """The query that the adapter makes of a rule for all pods of the namespace."""
    series = rule["seriesQuery"].partition("{")[0]
    query: str = rule["metricsQuery"]
    for name, text in {"Series": series, "LabelMatchers": 'namespace="hopline"', "GroupBy": "pod"}.items():
        query = query.replace(f"<<.{name}>>", text)
    return query


@contextlib.contextmanager
def prometheus(folder: Path) -> Iterator[str]:
    """Debian's Prometheus, which scrapes the pods of `targets.json` as the ServiceMonitor says."""
    monitor = yaml.safe_load((_DEPLOY / "monitoring/servicemonitor.yaml").read_text())
    (endpoint,) = monitor["spec"]["endpoints"]
    config = {
        "scrape_configs": [
            {
                "job_name": "hopline",
                "scrape_interval": endpoint["interval"],
                "scrape_timeout": endpoint["interval"],
                "metrics_path": endpoint["path"],
                "file_sd_configs": [{"files": [str(folder / "targets.json")], "refresh_interval": "1s"}],
            }
        ]
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    words = ["prometheus", f"--config.file={folder / 'prometheus.yml'}"]
    words += [f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while not is_up(f"http://127.0.0.1:{port}/-/ready"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no Prometheus: {(folder / 'prometheus.log').read_text()[-500:]}")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(process)
