"""What of a mesh is collected, and how patient and how large that may be."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hopline.errors import ConfigError

#: Namespaces that are remembered.
_MOST_KNOWN = 10_000


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """Settings of a collector.

    Attributes:
        deadline_s: longest that all questions of an interval may take together; below the interval.
        delay_s: how long before now a snapshot ends, for a Prometheus that gets its samples late.
        namespaces: regular expressions, each of a whole namespace; only these are watched; () is all.
        exclude_namespaces: the same, of those that are left out.
        max_services: in one snapshot. Those that were there before stay, then those that were seen first.
        max_edges: the same of call paths.
        parallel: questions under way at once; Prometheus answers 20 by default.
        keep_missing_s: how long missing services stay in the snapshot, as not measured, if an implausible
            number disappears at the same time or a query failed. Longer than the detector's window.
        lost_share: the implausible number, as a share of all services (3 at least).
        stale_s: a value that holds for a moment further back is left out.

    Raises:
        ConfigError: a value out of bounds, or an expression that is none.
    """

    deadline_s: float = 5.0
    delay_s: float = 0.0
    namespaces: tuple[str, ...] = ()
    exclude_namespaces: tuple[str, ...] = ()
    max_services: int = 20_000
    max_edges: int = 200_000
    parallel: int = 8
    keep_missing_s: float = 3600.0
    lost_share: float = 0.3
    stale_s: float = 60.0

    def __post_init__(self) -> None:
        for name, low in (
            ("deadline_s", 0.001),
            ("delay_s", 0.0),
            ("max_services", 1),
            ("max_edges", 1),
            ("parallel", 1),
            ("keep_missing_s", 0.0),
            ("stale_s", 0.001),
        ):
            value = getattr(self, name)
            if not value >= low:
                raise ConfigError(f"{name}: {value} is below {low}")
        if not 0.0 < self.lost_share <= 1.0:
            raise ConfigError(f"lost_share: {self.lost_share} is not within 0 to 1")
        for name in ("namespaces", "exclude_namespaces"):
            for pattern in getattr(self, name):
                try:
                    re.compile(pattern)
                except re.error as error:
                    raise ConfigError(f"{name}: {pattern!r} is not a regular expression: {error}") from None

    def watched(self) -> NamespaceFilter:
        """Which namespaces these let through."""
        return NamespaceFilter(self.namespaces, self.exclude_namespaces)


class NamespaceFilter:
    """Says whether a namespace is watched; remembers what it said."""

    def __init__(self, include: tuple[str, ...], exclude: tuple[str, ...]) -> None:
        self._include = [re.compile(pattern) for pattern in include]
        self._exclude = [re.compile(pattern) for pattern in exclude]
        # Services without a namespace are outside of the cluster; they pass.
        self._known = {"": True}

    def __call__(self, namespace: str) -> bool:
        """Whether it is, by its whole name."""
        known = self._known.get(namespace)
        if known is None:
            known = not any(pattern.fullmatch(namespace) for pattern in self._exclude) and (
                not self._include or any(pattern.fullmatch(namespace) for pattern in self._include)
            )
            if len(self._known) < _MOST_KNOWN:
                self._known[namespace] = known
        return known
