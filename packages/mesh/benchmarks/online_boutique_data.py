"""The recording online-boutique-2022-08-22 as a `Recording`: the columns used, and known errors in the
data.

A real mesh of ten services under 24 injected faults, one sample a minute (IntelligentDDS/Nezha, MIT).

Columns of a service: requests per second, share of failed requests (the frontend alone, from
front_service.csv, because `PodSuccessRate` is always 0), median latency (the frontend alone), 90th, 95th
and 99th percentile as server and as client, cores, memory, system calls, network bytes. Columns of a call
path: median latency measured by the caller and by the callee. Not used: values of the host, and shares of a
limit, which repeat the amounts; the limits are kept separately (`Recording.cpu_limits`).

Values treated as missing: a latency above 600 s, because no caller waits that long, or of exactly 0; a
counter (processor, system calls, network) that is exactly 0 while requests are served, because it was not
scraped; latencies of idle services, which are empty in the files. The column `TimeStamp` is wrong for some
rows, so times are parsed from `Time`. Processor time is in hundredths of a core, contrary to the header:
only then are the limits 0.2 and 0.3 cores.

Faults are labelled by their start. A fault lasts about 4 minutes.

The faults come first and the normal time follows. As a detector receives time in one direction only, the
data before the training is replayed after it, a day later (`Recording.in_playing_order`).
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.changes import Context
from hopline_mesh.evaluate.recording import Event, Period, Recording
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Snapshot

NAME = "online-boutique-2022-08-22"
INTERVAL_S = 60.0
EFFECT_S = 240.0
LONGEST_LATENCY_S = 600.0

Split = Literal["default", "other"]
_Column = NDArray[np.float64]

#: column of the schema -> (column of the file, factor)
_POD = {
    "request_rate": ("PodWorkload(Ops)", 1.0),
    "p90_ms": ("PodServerLatencyP90(s)", 1e3),
    "p95_ms": ("PodServerLatencyP95(s)", 1e3),
    "p99_ms": ("PodServerLatencyP99(s)", 1e3),
    "client_p90_ms": ("PodClientLatencyP90(s)", 1e3),
    "client_p95_ms": ("PodClientLatencyP95(s)", 1e3),
    "client_p99_ms": ("PodClientLatencyP99(s)", 1e3),
    "cpu_cores": ("CpuUsage(m)", 1e-2),
    "memory_bytes": ("MemoryUsage(Mi)", 2.0**20),
    "reads": ("SyscallRead", 1.0),
    "writes": ("SyscallWrite", 1.0),
    "receive_bytes": ("NetworkReceiveBytes", 1.0),
    "transmit_bytes": ("NetworkTransmitBytes", 1.0),
}
_COUNTERS = ("cpu_cores", "reads", "writes", "receive_bytes", "transmit_bytes")
SCHEMA = Schema(
    node_features=("request_rate", "error_share", "p50_ms", *list(_POD)[1:]),
    edge_features=("client_ms", "server_ms"),
)


def load(split: Split = "default", *, folder: Path | None = None) -> Recording:
    """The recording, in playing order.

    Args:
        split: "default" trains on 08:15 to 19:06 and tests on 19:06 to 24:00 and the faults' time, 03:51 to
            08:15; "other" trains on 13:09 to 24:00 and tests on the faults' time and 08:15 to 13:09.
        folder: with the files; default: `mesh/<NAME>` in HOPLINE_DATA, or in ../shared/data.

    Raises:
        FileNotFoundError: the data is not there.
    """
    if folder is None:
        folder = Path(os.environ.get("HOPLINE_DATA") or "../shared/data") / "mesh" / NAME
    pods = {path.name.split("-")[0]: _read(path) for path in sorted(folder.glob("*_metric.csv"))}
    if not pods:
        raise FileNotFoundError(
            f"the recording is not at {folder}; set HOPLINE_DATA to the folder that contains mesh/{NAME}"
        )
    start_s = float(min(table["Time"][0] for table in pods.values()))
    count = 1 + max(round((table["Time"][-1] - start_s) / INTERVAL_S) for table in pods.values())
    nodes, limits = _nodes(pods, _read(folder / "front_service.csv"), start_s, count)
    pairs = _pairs(folder / "dependency.csv", set(pods))
    edges = np.full((count, len(pairs), 2), np.nan, dtype=np.float32)
    for column, name in enumerate(("source_50.csv", "destination_50.csv")):
        table = _read(folder / name)
        at = _places(table, start_s)
        for number, (caller, callee) in enumerate(pairs):
            edges[at, number, column] = 1e3 * _latency(table[f"{caller}_{callee}"])
    roster = Roster(pods)
    slots = np.arange(len(pods), dtype=np.int32)
    src = np.array([roster.find(caller) for caller, _ in pairs], dtype=np.int32)
    dst = np.array([roster.find(callee) for _, callee in pairs], dtype=np.int32)
    snapshots = [
        Snapshot(start_s + INTERVAL_S * k, SCHEMA, roster, slots, nodes[k], src, dst, edges[k])
        for k in range(count)
    ]
    train, test = _periods(split)
    return Recording(
        snapshots=snapshots,
        contexts=[Context()] * count,
        events=_events(folder / "labels_utc.csv"),
        train=train,
        test=test,
        interval_s=INTERVAL_S,
        cpu_limits=limits,
        name=NAME,
    ).in_playing_order()


def _periods(split: Split) -> tuple[tuple[Period, ...], tuple[Period, ...]]:
    morning, noon, evening = _clock(8, 15), _clock(13, 9), _clock(19, 6)
    begin, end = _clock(3, 51), _clock(23, 59) + 60
    if split == "default":
        return (Period(morning, evening),), (Period(begin, morning), Period(evening, end))
    return (Period(noon, end),), (Period(begin, noon),)


def _clock(hour: int, minute: int) -> float:
    return datetime(2022, 8, 22, hour, minute, tzinfo=UTC).timestamp()


def _nodes(
    pods: dict[str, dict[str, _Column]], front: dict[str, _Column], start_s: float, count: int
) -> tuple[NDArray[np.float32], dict[str, float]]:
    """Features [count, services, columns], and the limit of each service in cores."""
    features = np.full((count, len(pods), len(SCHEMA.node_features)), np.nan, dtype=np.float32)
    column_of = {name: column for column, name in enumerate(SCHEMA.node_features)}
    limits = {}
    for slot, (service, table) in enumerate(pods.items()):
        at = _places(table, start_s)
        serving = table["PodWorkload(Ops)"] > 0
        for name, (header, factor) in _POD.items():
            values = table[header]
            if name.endswith("_ms"):
                values = _latency(values)
            elif name in _COUNTERS:
                values = np.where(serving & (values == 0), np.nan, values)
            features[at, slot, column_of[name]] = factor * values
        with np.errstate(invalid="ignore", divide="ignore"):
            limits[service] = round(float(np.nanmedian(table["CpuUsage(m)"] / table["CpuUsageRate(%)"])), 3)
    frontend = list(pods).index("frontend")
    at = _places(front, start_s)
    features[at, frontend, column_of["error_share"]] = 1 - front["SuccessRate(%)"] / 100
    features[at, frontend, column_of["p50_ms"]] = 1e3 * _latency(front["LatencyP50(s)"])
    return features, limits


def _latency(values: _Column) -> _Column:
    return np.where((values > 0) & (values <= LONGEST_LATENCY_S), values, np.nan)


def _pairs(path: Path, services: set[str]) -> list[tuple[str, str]]:
    """Call paths between services; the file also contains paths to addresses of hosts."""
    with path.open(newline="") as file:
        rows = [(row["Source"], row["Target"]) for row in csv.DictReader(file)]
    return [pair for pair in rows if services.issuperset(pair)]


def _events(path: Path) -> Sequence[Event]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        Event(
            float(row["t_start_utc"]),
            float(row["t_start_utc"]) + EFFECT_S,
            row["service"],
            None,
            row["type"],
        )
        for row in rows
    ]


def _places(table: dict[str, _Column], start_s: float) -> NDArray[np.int64]:
    return np.rint((table["Time"] - start_s) / INTERVAL_S).astype(np.int64)


def _read(path: Path) -> dict[str, _Column]:
    """All numeric columns; `Time` in Unix seconds, in any case of its name."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = {
        name: np.array([float(row[name] or "nan") for row in rows])
        for name in rows[0]
        if name.lower() not in ("time", "podname", "servicename")
    }
    header = "Time" if "Time" in rows[0] else "time"
    table["Time"] = np.array([_unix(row[header]) for row in rows])
    return table


def _unix(text: str) -> float:
    """Parse a time, for example `2022-08-22 03:51:19.799087274 +0000 UTC m=+0.305041286`."""
    day, clock, *_ = text.split(" ")
    return datetime.fromisoformat(f"{day} {clock[:8]}+00:00").timestamp()
