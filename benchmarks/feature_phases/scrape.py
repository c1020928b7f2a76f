"""Metrics of a server, from /metrics."""

from __future__ import annotations

import http.client
import re
from contextlib import closing

_LINE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)


class Scrape:
    """The samples of one moment; with several workers the sum over them."""

    def __init__(self, port: int) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        self._samples = [(m[1], m[2] or "", float(m[3])) for m in _LINE.finditer(text)]

    def total(self, name: str, *labels: str) -> float:
        """The sum of a family's samples that carry all of the labels, each as `name="value"`."""
        return sum(
            value
            for family, told, value in self._samples
            if family == name and all(label in told for label in labels)
        )
