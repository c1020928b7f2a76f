"""Attacks through what changes a server: loads, rollouts, live events; and many parallel callers."""

from __future__ import annotations

import io
import json
import time
from collections import Counter

from benchmarks.abuse_phases import http_wire as http
from benchmarks.abuse_phases.case import Attack, Case
from benchmarks.abuse_phases.http_cases import SCORE
from benchmarks.abuse_phases.target import Setup, Target

LOAD = "/v2/repository/models/risk/load"
EVENTS = "/v1/graph/events"
_LIVE = Setup(live=True)
#: Connections that ask for one node each, and for how long, in seconds.
_CALLERS, _ASKING_S = 32, 3.0


def _load(parameters: object) -> bytes:
    return http.request(LOAD, json.dumps({"parameters": parameters}).encode())


def strange_graphs(target: Target) -> Attack:
    """Loads whose `graph` or `version` is no path: NUL, 5,000 characters, dots."""
    texts = ["\0", "a\0b", "x" * 5000, "/" + "x" * 5000, "../" * 1700, "\ud800", ""]
    requests = [_load({name: text}) for name in ("graph", "version") for text in texts]
    requests += [
        http.request(f"/v2/repository/models/{model}/load", b"{}")
        for model in ("%00", "%2e%2e", "x" * 5000, "%ff")
    ]
    rollout = {"model": "risk", "version": "1"}
    requests += [
        http.request("/v1/rollouts", json.dumps({**rollout, name: text}).encode())
        for name in ("graph", "version")
        for text in texts
    ]
    return lambda: http.each_alone(target.port, requests)


def loads_with_groups(target: Target) -> Attack:
    """40 loads, each with other `groups`."""
    requests = [_load({"groups": [f"account=group{number}"]}) for number in range(40)]
    return lambda: http.each_alone(target.port, requests)


def many_groups(target: Target) -> Attack:
    """A load with 200,000 groups."""
    requests = [_load({"groups": [f"g{number}" for number in range(200_000)]})]
    return lambda: http.each_alone(target.port, requests)


def many_steps(target: Target) -> Attack:
    """Rollouts with 300,000 steps: ascending, and all alike."""
    ascending = [100 * (at + 1) / 300_000 for at in range(300_000)]
    bodies = [
        {"model": "fraud", "version": "1", "kind": "canary", "steps": steps}
        for steps in (ascending, [50.0] * 300_000)
    ]
    requests = [http.request("/v1/rollouts", json.dumps(body).encode()) for body in bodies]
    return lambda: http.each_alone(target.port, requests)


def lines_that_are_no_json(target: Target) -> Attack:
    """1 MB of lines that are not JSON, 500,000 of them, and 1 MB of invalid events."""
    bodies = [b"x\n" * 500_000, b"{}\n" * 333_333, b"[" + b"{}," * 333_332 + b"{}]"]
    requests = [http.request(EVENTS, body) for body in bodies]
    return lambda: http.each_alone(target.port, requests)


def _stream(batch: object, **options: object) -> bytes:
    import pyarrow as pa

    out = io.BytesIO()
    with pa.ipc.new_stream(out, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:  # type: ignore[attr-defined]
        writer.write_batch(batch)
    return out.getvalue()


def arrow_nulls(target: Target) -> Attack:
    """224 bytes: a null column of 2,000,000,000 rows."""
    import pyarrow as pa

    body = _stream(pa.record_batch({"op": pa.nulls(2_000_000_000)}))
    return lambda: http.each_alone(target.port, [http.request(EVENTS, body)])


def arrow_zstd(target: Target) -> Attack:
    """Some ten KB of zstd that are 800 MB of one column."""
    import numpy as np
    import pyarrow as pa

    column = pa.array(np.zeros(100_000_000, np.int64))
    body = _stream(pa.record_batch({"op": pa.nulls(len(column)), "src": column}), compression="zstd")
    return lambda: http.each_alone(target.port, [http.request(EVENTS, body)])


def arrow_columns(target: Target) -> Attack:
    """20,000 columns."""
    import pyarrow as pa

    body = _stream(pa.record_batch({f"c{number}": [number] for number in range(20_000)}))
    return lambda: http.each_alone(target.port, [http.request(EVENTS, body)])


def callers_of_a_deep_model(target: Target) -> Attack:
    """32 callers that each ask for one node of a model of three layers over six edge types.

    No attack: what share is refused. Status "refused %" counts in percent.
    """

    def ask(number: int) -> Counter[str]:
        client = http.HttpSocket(target.port)
        end, sent = time.monotonic() + _ASKING_S, 0
        try:
            while time.monotonic() < end:
                node = (number * 997 + sent) % 100_000
                client.send([http.request(SCORE, b'{"nodes":[%d]}' % node)])
                sent += 1
                client.wait(sent, 10.0)
            return client.summary(sent)
        finally:
            client.close()

    def attack() -> Counter[str]:
        found = http.at_once([lambda number=number: ask(number) for number in range(_CALLERS)])  # type: ignore[misc]
        share = round(100 * found["503"] / max(1, found.total()))
        if share:
            found["refused %"] = share
        return found

    return attack


CASES = [
    Case("strange_graphs", strange_graphs, frozenset({"200"})),
    Case("loads_with_groups", loads_with_groups, frozenset({"200"})),
    Case("many_groups", many_groups, frozenset({"200"})),
    Case("many_steps", many_steps),
    Case("deep_model_callers", callers_of_a_deep_model, frozenset({"200"})),
    Case("events_no_json", lines_that_are_no_json, frozenset({"200"}), setup=_LIVE),
    Case("arrow_nulls", arrow_nulls, frozenset({"200"}), setup=_LIVE),
    Case("arrow_zstd", arrow_zstd, frozenset({"200"}), setup=_LIVE),
    Case("arrow_columns", arrow_columns, frozenset({"200"}), setup=_LIVE),
]
