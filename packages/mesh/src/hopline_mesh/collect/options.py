"""Options of a collector: its scope, timeouts and limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """Settings of a collector.

    Attributes:
        deadline_s: timeout of all queries of an interval together; below the interval.
        delay_s: how long before now a snapshot ends, if Prometheus gets its samples late.
        namespaces: regular expressions of whole namespaces to watch; () is all.
        exclude_namespaces: regular expressions of whole namespaces to leave out.
        max_services: in one snapshot. Known ones stay, then the first new ones are added.
        max_edges: maximum number of call paths, as `max_services`.
        keep_missing_s: how long missing services stay in the snapshot, as not measured, if an implausible
            number disappears at the same time or a query failed. Longer than the detector's window.
        stale_s: values that differ from the time of the query by more than this are left out.
    """

    deadline_s: float = 5.0
    delay_s: float = 0.0
    namespaces: tuple[str, ...] = ()
    exclude_namespaces: tuple[str, ...] = ()
    max_services: int = 20_000
    max_edges: int = 200_000
    keep_missing_s: float = 3600.0
    stale_s: float = 60.0
