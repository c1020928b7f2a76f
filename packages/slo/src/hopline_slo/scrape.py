"""Fetches and parses `/metrics` of a server, which is in the Prometheus text format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import httpx2

from hopline.client import wire
from hopline.commands.connection import credentials, server_url
from hopline.errors import BadRequest, Unavailable

_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPES = re.compile(r"\\(.)")


class MetricReading(NamedTuple):
    """One sample: its labels and its value."""

    labels: Mapping[str, str]
    value: float


class Scrape:
    """All samples of one scrape, by name.

    Args:
        text: body of `/metrics`.

    Raises:
        BadRequest: a line is invalid; the message names it.
    """

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[MetricReading]] = {}
        for number, line in enumerate(text.split("\n"), 1):
            line = line.strip()
            if line and not line.startswith("#"):
                name, reading = _read(line, number)
                self._samples.setdefault(name, []).append(reading)

    def samples(self, name: str, **labels: str) -> Iterator[MetricReading]:
        """The samples of a name that have these labels (and possibly others)."""
        for reading in self._samples.get(name, ()):
            if all(reading.labels.get(key) == value for key, value in labels.items()):
                yield reading

    def total(self, name: str, **labels: str) -> float:
        """The sum of these samples, 0 if there are none."""
        return sum(reading.value for reading in self.samples(name, **labels))

    def by(self, name: str, *keys: str) -> dict[tuple[str, ...], float]:
        """Sums by the values of some labels, sorted."""
        sums: dict[tuple[str, ...], float] = {}
        for reading in self.samples(name):
            values = tuple(reading.labels.get(key, "") for key in keys)
            sums[values] = sums.get(values, 0.0) + reading.value
        return dict(sorted(sums.items()))

    def __contains__(self, name: str) -> bool:
        return name in self._samples


def _read(line: str, number: int) -> tuple[str, MetricReading]:
    start = line.find("{")
    labels: dict[str, str] = {}
    if start < 0:
        name, _, rest = line.partition(" ")
    else:
        name, at = line[:start], start + 1
        while found := _LABEL.match(line, at):
            labels[found[1]] = _ESCAPES.sub(lambda each: "\n" if each[1] == "n" else each[1], found[2])
            at = found.end()
        if line[at : at + 1] != "}":
            raise BadRequest(
                f"line {number} of the metrics is not in the Prometheus text format: {line[:80]!r}"
            )
        rest = line[at + 1 :]
    try:
        return name, MetricReading(labels, float(rest.split()[0]))  # a timestamp may follow
    except (ValueError, IndexError):
        raise BadRequest(f"line {number} of the metrics has no number: {line[:80]!r}") from None


def read_metrics(
    url: str | None, api_key: str | None, token: str | None, timeout_s: float = 10.0
) -> Scrape:
    """The current metrics of a server.

    Args:
        url, api_key, token: flags; None reads the environment.

    Raises: Unavailable: the server does not answer, or answers without metrics.
    """
    page = f"{server_url(url).rstrip('/').removesuffix('/metrics')}/metrics"
    try:
        answer = httpx2.get(page, timeout=timeout_s, headers=wire.credentials(*credentials(api_key, token)))
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise Unavailable(f"{page}: {error}") from None
    if answer.status_code != 200:
        raise Unavailable(f"{page}: answered {answer.status_code}: {answer.text[:200]}")
    return Scrape(answer.text)
