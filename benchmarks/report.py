"""The serving benchmark's table, and the figures and ratios of its JSON line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from benchmarks.load import Load

HOPLINE_ROWS = ("hopline", "hopline_warm", "hopline_filled")
_RATIOS = ("ratio", "ratio_warm", "ratio_filled")


@dataclass(frozen=True)
class Row:
    """One server's two runs."""

    c1: Load
    c32: Load

    @property
    def failed(self) -> bool:
        """True if any request of either run failed."""
        return self.c1.failed or self.c32.failed

    def figures(self) -> dict[str, dict[str, float]]:
        """The row as the JSON line has it."""
        return {
            "c1": {"p50_ms": round(self.c1.p50_ms, 3), "p99_ms": round(self.c1.p99_ms, 3)},
            "c32": {"rps": round(self.c32.rps, 1), "p99_ms": round(self.c32.p99_ms, 3)},
        }

    def errors(self) -> dict[str, dict[str, int]]:
        """Non-zero error counts by load; empty for a sound row."""
        runs = {"c1": self.c1, "c32": self.c32}
        counted = {name: {k: n for k, n in run.errors.items() if n} for name, run in runs.items()}
        return {name: errors for name, errors in counted.items() if errors}


def median_row(rows: list[Row]) -> Row:
    """Figure by figure, the median of several rounds; errors add up."""
    return Row(median_load([row.c1 for row in rows]), median_load([row.c32 for row in rows]))


def median_load(loads: list[Load]) -> Load:
    """See `median_row`."""
    errors: dict[str, int] = {}
    for load in loads:
        for name, count in load.errors.items():
            errors[name] = errors.get(name, 0) + count
    return Load(
        num_requests=sum(load.num_requests for load in loads),
        rps=median([load.rps for load in loads]),
        p50_ms=median([load.p50_ms for load in loads]),
        p99_ms=median([load.p99_ms for load in loads]),
        max_ms=max(load.max_ms for load in loads),
        errors=errors,
    )


def table(rows: dict[str, Row]) -> str:
    """A plain table, one line per server."""
    columns = ("c1 p50 ms", "c1 p99 ms", "c1 req/s", "c32 req/s", "c32 p50 ms", "c32 p99 ms")
    head = f"{'server':<14}" + "".join(f"{column:>12}" for column in columns)
    lines = [head, "-" * len(head)]
    for name, row in rows.items():
        lines.append(
            f"{name:<14}{row.c1.p50_ms:>12.3f}{row.c1.p99_ms:>12.3f}{row.c1.rps:>12,.0f}"
            f"{row.c32.rps:>12,.0f}{row.c32.p50_ms:>12.2f}{row.c32.p99_ms:>12.2f}"
            + (f"  FAILED {row.errors()}" if row.failed else "")
        )
    return "\n".join(lines)


def ratios(ours: Row, peers: list[Row]) -> dict[str, float | None]:
    """Ours over the best peer, figure by figure; None where nothing can be compared."""

    def over(best: Callable[[list[float]], float], figure: Callable[[Row], float]) -> float | None:
        return round(figure(ours) / best([figure(peer) for peer in peers]), 4) if peers else None

    return {
        "c1_p50": over(min, lambda row: row.c1.p50_ms),
        "c32_rps": over(max, lambda row: row.c32.rps),
        "c32_p99": over(min, lambda row: row.c32.p99_ms),
    }


def result(rows: dict[str, Row], failed: dict[str, str]) -> dict[str, object]:
    """The JSON line's figures. A row with errors is listed under `failed`, never compared.

    Args:
        failed: servers that gave no row at all, and why.

    `cold_p99_over_peer_p50` is p99 of the cold server with one connection, over the best peer's p50.
    """
    sound = {name: row for name, row in rows.items() if not row.failed}
    peers = {name: row for name, row in sound.items() if name not in HOPLINE_ROWS}
    answer: dict[str, object] = {}
    for name in HOPLINE_ROWS:
        answer[name] = sound[name].figures() if name in sound else None
    answer["peers"] = {name: row.figures() for name, row in peers.items()}
    for name, key in zip(HOPLINE_ROWS, _RATIOS, strict=True):
        answer[key] = ratios(sound[name], list(peers.values())) if name in sound else None
    answer["cold_p99_over_peer_p50"] = None
    if peers and "hopline" in sound:
        best = min(row.c1.p50_ms for row in peers.values())
        answer["cold_p99_over_peer_p50"] = round(sound["hopline"].c1.p99_ms / best, 4)
    with_errors = {name: f"errors: {row.errors()}" for name, row in rows.items() if row.failed}
    answer["failed"] = failed | with_errors
    answer["ok"] = not answer["failed"] and "hopline" in sound
    return answer
