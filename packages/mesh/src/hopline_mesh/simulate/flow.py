"""The physics of one step: rates of requests, latencies and failures of all services and call paths.

Requests go down the layers; latencies and failures come back up. Feedback (failures cause retries, which
cause failures; calls in cycles) uses the values of the previous step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hopline_mesh.simulate.lognormal import Floats, Latencies, share_above
from hopline_mesh.simulate.topology import Topology

#: Longest wait of a request for a free worker, in service times, because queues are bounded.
_LONGEST_WAIT = 40.0
#: Share of a call's time that delays the caller, because some calls run in parallel.
_SERIAL_SHARE = 0.7
#: Largest share in a logarithm; 1 would give an infinite value.
_MAX_SHARE = 0.999999


@dataclass(frozen=True, slots=True, eq=False)
class Conditions:
    """The conditions of one step; arrays over services [s] or edges [e]."""

    entering: Floats  # [s], requests per second from outside
    calls: Floats  # [e], calls per request of the caller; 0 for unused paths
    ready: Floats  # [s], pods that serve
    slow_mean: Floats  # [s], mean over the ready pods of the factor on the usual time of a request in a pod
    slow_square: Floats  # [s], mean square of that factor
    own_ms: Floats  # [s], usual time in the service itself
    own_errors: Floats  # [s], share of requests that fail in the service itself
    loss: Floats  # [e], share of calls that never arrive and time out
    delay_ms: Floats  # [e], additional time in the network
    resend: Floats  # [e], how many times each call is sent, usually 1


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """The state of one step; arrays over services [s] or edges [e]."""

    arrived: Floats  # [s], requests per second that reach a pod, from outside and from callers
    errors: Floats  # [s], share of them with an error response
    served: Floats  # [s], requests per second that were processed
    server: Latencies  # [s], at the server; stuck: waiting for a timeout somewhere below
    in_flight: Floats  # [s], requests in the service, by Little's law
    sent: Floats  # [e], attempts per second
    received: Floats  # [e], attempts per second that reach the callee
    failed: Floats  # [e], share of the attempts that fail, as the caller sees it
    client: Latencies  # [e], of an attempt at the caller


def start(topology: Topology) -> Flow:
    """Return the state before the first step, without any request."""
    nodes, edges = np.zeros(len(topology.names)), np.zeros(len(topology.src))
    server, client = Latencies(*[nodes] * 4), Latencies(*[edges] * 4)
    return Flow(nodes, nodes, nodes, server, nodes, edges, edges, edges, client)


def advance(topology: Topology, now: Conditions, before: Flow) -> Flow:
    """Return the next state under given conditions.

    Queueing: Sakasegawa's approximation of the wait of M/M/c, with the pod's workers as servers.
    """
    src, dst = topology.src, topology.dst
    s = len(topology.names)
    gone = now.ready <= 0
    ready = np.maximum(now.ready, 1e-9)
    # Waiting calls occupy the caller's threads; with too many of them, new requests are rejected.
    limit = ready * (30.0 * topology.workers + 50.0)
    clogged = np.clip(1.0 - limit / np.maximum(before.in_flight, 1e-9), 0.0, 0.9)
    own_ms = now.own_ms * now.slow_mean
    capacity = ready * topology.workers * 1000.0 / own_ms

    # Downwards: requests.
    failing = np.minimum(before.failed, 0.999)
    tries = (1.0 - failing ** (topology.retries + 1)) / (1.0 - failing)
    # A budget lets only some of the retries happen.
    tried = np.minimum(tries, 1.0 + topology.retry_budget)
    allowed = np.where(tried < tries, (tried - 1.0) / np.maximum(tries - 1.0, 1e-12), 1.0)
    attempts = tried * now.resend
    per_request = now.calls * attempts
    arrives = np.where(gone[dst], 0.0, 1.0 - now.loss)
    arrived = np.where(gone, 0.0, now.entering)
    served = np.zeros(s)
    sent = np.zeros(len(src))
    back = topology.back
    sent[back] = before.served[src[back]] * per_request[back]
    arrived += np.bincount(dst[back], sent[back] * arrives[back], s)
    for level in topology.levels:
        served = np.minimum(arrived * (1.0 - clogged), capacity)
        sent[level] = served[src[level]] * per_request[level]
        arrived += np.bincount(dst[level], sent[level] * arrives[level], s)
    busy = arrived / capacity
    # Requests that are not served are rejected immediately.
    served = np.minimum(arrived * (1.0 - clogged), capacity)
    rejected = 1.0 - served / np.maximum(arrived, 1e-12)

    # Upwards: latencies and failures.
    rho = np.minimum(busy, 0.99)
    wait = rho ** (np.sqrt(2.0 * (topology.workers + 1.0)) - 1.0) / (topology.workers * (1.0 - rho))
    wait = np.minimum(wait + 20.0 * np.clip((busy - 0.95) / 0.3, 0.0, 1.0), _LONGEST_WAIT) * own_ms
    mean = own_ms + wait
    variance = now.own_ms**2 * (
        topology.spread**2 * now.slow_square + np.maximum(now.slow_square - now.slow_mean**2, 0.0)
    )
    variance += wait**2
    right = np.log1p(-np.minimum(now.own_errors, _MAX_SHARE))
    right += np.log1p(-np.clip(rejected, 0.0, _MAX_SHARE))
    smooth = np.zeros(s)
    stuck_time = np.zeros(s)
    stuck_weight = np.zeros(s)
    failed, client, client_variance, client_stuck, client_stuck_ms = np.zeros((5, len(src)))
    for level in (back, *reversed(topology.levels)):
        callee, caller = dst[level], src[level]
        if level is back:
            errors = before.errors[callee]
            callee_ms, callee_variance, stuck, stuck_ms = before.server.of(callee)
        else:
            errors = -np.expm1(right[callee])
            stuck = -np.expm1(smooth[callee])
            callee_ms, callee_variance = mean[callee], variance[callee]
            stuck_ms = stuck_time[callee] / np.maximum(stuck_weight[callee], 1e-12) + callee_ms
        way = topology.network_ms[level] + now.delay_ms[level]
        timeout = topology.timeout_ms[level]
        took = callee_ms + way
        spread = callee_variance + (0.25 * way) ** 2
        late = share_above(timeout, took, spread)
        # The caller waits for a lost call until the timeout; without any pod the proxy fails immediately.
        none = gone[callee]
        loss = np.where(none, 0.0, now.loss[level])
        slow = np.minimum(stuck_ms + way, timeout)
        too_slow = np.where(slow >= timeout, stuck, 0.0)
        lost = 1.0 - (1.0 - loss) * (1.0 - late) * (1.0 - too_slow)
        passed = (1.0 - lost) * (stuck - too_slow)
        failed[level] = np.where(none, 1.0, 1.0 - (1.0 - errors) * (1.0 - lost))
        client[level] = np.where(none, 1.0, np.minimum(took, timeout))
        client_variance[level] = np.where(none, 0.1, spread)
        held = client_stuck[level] = np.where(none, 0.0, np.minimum(lost + passed, 1.0))
        held_ms = client_stuck_ms[level] = (lost * timeout + passed * slow) / np.maximum(
            lost + passed, 1e-12
        )
        calls = now.calls[level]
        repeats = np.minimum(tried[level], 3.0)
        share, several = np.minimum(calls, 1.0), np.maximum(calls, 1.0)
        length = _SERIAL_SHARE * repeats * client[level]
        mean += np.bincount(caller, calls * length, s)
        square = client_variance[level] * (_SERIAL_SHARE * repeats) ** 2
        variance += np.bincount(caller, several * (share * (square + length**2) - (share * length) ** 2), s)
        at_once = failed[level]
        for_good = at_once - allowed[level] * (at_once - at_once ** (topology.retries[level] + 1))
        hurt = np.minimum(share * topology.critical[level] * for_good, _MAX_SHARE)
        right += np.bincount(caller, np.log1p(-hurt), s)
        held = np.minimum(calls * repeats * held, _MAX_SHARE)
        smooth += np.bincount(caller, np.log1p(-held), s)
        stuck_time += np.bincount(caller, held * held_ms * _SERIAL_SHARE, s)
        stuck_weight += np.bincount(caller, held, s)
    stuck = -np.expm1(smooth)
    stuck_ms = np.where(stuck > 0.0, stuck_time / np.maximum(stuck_weight, 1e-12) + mean, 0.0)
    server = Latencies(mean, variance, stuck, stuck_ms)
    return Flow(
        arrived=arrived,
        errors=np.where(gone, 0.0, -np.expm1(right)),
        served=served,
        server=server,
        in_flight=served * server.overall_ms() / 1000.0,
        sent=sent,
        received=sent * arrives,
        failed=failed,
        client=Latencies(client, client_variance, client_stuck, client_stuck_ms),
    )
