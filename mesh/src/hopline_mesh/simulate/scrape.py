"""A configuration for a Prometheus that scrapes a simulated mesh."""

from __future__ import annotations


def prometheus_config(port: int, interval_s: float = 15.0, host: str = "127.0.0.1") -> str:
    """Return the text of the file.

    Args:
        port: of `/metrics` of the simulation.
        interval_s: seconds from one scrape to the next, at least 0.001.
    """
    interval = f"{max(1, round(interval_s * 1000))}ms"
    return (
        "# Written by `hopline mesh simulate`; prometheus --config.file=<this file>\n"
        "global:\n"
        f"  scrape_interval: {interval}\n"
        f"  scrape_timeout: {interval}\n"
        f"  evaluation_interval: {interval}\n"
        "scrape_configs:\n"
        "  - job_name: mesh\n"
        "    # `namespace` and `pod` are those of the simulated pods.\n"
        "    honor_labels: true\n"
        "    static_configs:\n"
        f'      - targets: ["{host}:{port}"]\n'
    )
