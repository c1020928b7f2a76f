"""The planned changes and troubles that Kubernetes would report, newest last."""

from __future__ import annotations

import msgspec

from hopline_mesh.changes import Change, ChangeKind, Context, KubernetesTrouble, TroubleKind
from hopline_mesh.simulate.topology import Topology

#: How long ended changes and troubles are listed.
KEEP_S = 900.0


class Journal:
    """Changes and troubles of a simulated mesh; services are numbers of its topology."""

    def __init__(self, topology: Topology) -> None:
        self._names = topology.names
        rows = zip(topology.names, topology.services, strict=True)
        # Workloads are listed under the names of their Services too, as by `kubernetes.feed`.
        self._also = {name: service for name, service in rows if service not in topology.names}
        self._open: dict[tuple[str, int], Change | KubernetesTrouble] = {}
        self._past: list[Change | KubernetesTrouble] = []

    def begin(
        self, kind: ChangeKind, service: int, now_s: float, detail: str = "",
        pods: tuple[int | None, int | None] = (None, None),
    ) -> None:  # fmt: skip
        """Begin a change, or set another aim of an open one.

        Args:
            pods: for `scale`, the wanted number before and after.
        """
        known = self._open.get((kind, service))
        start_s = now_s if known is None else known.start_s
        before, after = pods
        if isinstance(known, Change) and known.before is not None:
            before = known.before
        detail = detail or f"{before} to {after} pods"
        self._open[kind, service] = Change(kind, self._names[service], start_s, None, detail, before, after)

    def trouble(self, kind: TroubleKind, service: int, now_s: float, detail: str) -> None:
        """Begin or continue a trouble."""
        known = self._open.get((kind, service))
        start_s = now_s if known is None else known.start_s
        name = self._names[service]
        self._open[kind, service] = KubernetesTrouble(kind, name, start_s, None, detail)

    def end(self, now_s: float, service: int, *kinds: ChangeKind | TroubleKind) -> None:
        """End changes and troubles of a service; those that are not open are ignored."""
        for kind in kinds:
            known = self._open.pop((kind, service), None)
            if known is not None:
                self._past.append(msgspec.structs.replace(known, end_s=max(now_s, known.start_s)))

    def context(self, now_s: float) -> Context:
        """Return all changes and troubles at this time, under each name that a mesh may have for them."""
        self._past = [each for each in self._past if (each.end_s or 0.0) >= now_s - KEEP_S]
        found = []
        for each in sorted([*self._past, *self._open.values()], key=lambda each: each.start_s):
            found.append(each)
            if each.service in self._also:
                found.append(msgspec.structs.replace(each, service=self._also[each.service]))
        return Context(
            tuple(each for each in found if isinstance(each, Change)),
            tuple(each for each in found if isinstance(each, KubernetesTrouble)),
        )
