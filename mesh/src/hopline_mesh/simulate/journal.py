"""The planned changes and troubles that Kubernetes would report, newest last."""

from __future__ import annotations

import msgspec

from hopline_mesh.changes import Change, ChangeKind, Context, KubernetesTrouble, TroubleKind

#: How long ended changes and troubles are listed.
KEEP_S = 900.0


class Journal:
    """Changes and troubles of a simulated mesh."""

    def __init__(self) -> None:
        self._changes: dict[tuple[ChangeKind, str], Change] = {}
        self._troubles: dict[tuple[TroubleKind, str], KubernetesTrouble] = {}
        self._past_changes: list[Change] = []
        self._past_troubles: list[KubernetesTrouble] = []
        self._context: Context | None = Context()

    def begin(
        self,
        kind: ChangeKind,
        service: str,
        now_s: float,
        detail: str = "",
        pods: tuple[int, int] | None = None,
    ) -> None:
        """Begin a change, or set another aim of an open one.

        Args:
            pods: for `scale`, the wanted number before and after.
        """
        known = self._changes.get((kind, service))
        start_s = now_s if known is None else known.start_s
        before, after = pods or (None, None)
        if known is not None and known.before is not None:
            before = known.before
        detail = detail or f"{before} to {after} pods"
        self._changes[kind, service] = Change(kind, service, start_s, None, detail, before, after)
        self._context = None

    def end(self, kind: ChangeKind, service: str, now_s: float) -> None:
        """End a change; does nothing if it is not open."""
        known = self._changes.pop((kind, service), None)
        if known is not None:
            end_s = max(now_s, known.start_s)
            self._past_changes.append(msgspec.structs.replace(known, end_s=end_s))
            self._context = None

    def trouble(self, kind: TroubleKind, service: str, now_s: float, detail: str) -> None:
        """Begin or continue a trouble."""
        known = self._troubles.get((kind, service))
        start_s = now_s if known is None else known.start_s
        self._troubles[kind, service] = KubernetesTrouble(kind, service, start_s, None, detail)
        self._context = None

    def over(self, kind: TroubleKind, service: str, now_s: float) -> None:
        """End a trouble; does nothing if it is not open."""
        known = self._troubles.pop((kind, service), None)
        if known is not None:
            self._past_troubles.append(KubernetesTrouble(kind, service, known.start_s, now_s, known.detail))
            self._context = None

    def under_way(self, kind: ChangeKind, service: str) -> bool:
        """Whether such a change is open."""
        return (kind, service) in self._changes

    def context(self, now_s: float) -> Context:
        """Return all changes and troubles at this time."""
        old = now_s - KEEP_S
        if self._past_changes and (self._past_changes[0].end_s or 0.0) < old:
            self._past_changes = [change for change in self._past_changes if (change.end_s or 0.0) >= old]
            self._context = None
        if self._past_troubles and (self._past_troubles[0].end_s or 0.0) < old:
            self._past_troubles = [past for past in self._past_troubles if (past.end_s or 0.0) >= old]
            self._context = None
        if self._context is None:
            self._context = Context(
                tuple(
                    sorted([*self._past_changes, *self._changes.values()], key=lambda each: each.start_s)
                ),
                tuple(
                    sorted([*self._past_troubles, *self._troubles.values()], key=lambda each: each.start_s)
                ),
            )
        return self._context
