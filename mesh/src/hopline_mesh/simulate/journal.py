"""The planned changes and troubles that Kubernetes would report, newest last."""

from __future__ import annotations

import msgspec

from hopline_mesh.changes import Change, ChangeKind, Context, KubernetesTrouble, TroubleKind

#: How long ended changes and troubles are listed.
KEEP_S = 900.0


class Journal:
    """Changes and troubles of a simulated mesh."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], Change | KubernetesTrouble] = {}
        self._past: list[Change | KubernetesTrouble] = []
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
        known = self._open.get((kind, service))
        before, after = pods or (None, None)
        if isinstance(known, Change) and known.before is not None:
            before = known.before
        start_s = now_s if known is None else known.start_s
        detail = detail or f"{before} to {after} pods"
        self._open[kind, service] = Change(kind, service, start_s, None, detail, before, after)
        self._context = None

    def trouble(self, kind: TroubleKind, service: str, now_s: float, detail: str) -> None:
        """Begin or continue a trouble."""
        known = self._open.get((kind, service))
        start_s = now_s if known is None else known.start_s
        self._open[kind, service] = KubernetesTrouble(kind, service, start_s, None, detail)
        self._context = None

    def end(self, kind: ChangeKind | TroubleKind, service: str, now_s: float) -> None:
        """End a change or a trouble; does nothing if it is not open."""
        known = self._open.pop((kind, service), None)
        if known is not None:
            self._past.append(msgspec.structs.replace(known, end_s=max(now_s, known.start_s)))
            self._context = None

    def context(self, now_s: float) -> Context:
        """Return all changes and troubles at this time."""
        old = now_s - KEEP_S
        if any((each.end_s or 0.0) < old for each in self._past):
            self._past = [each for each in self._past if (each.end_s or 0.0) >= old]
            self._context = None
        if self._context is None:
            found = sorted([*self._past, *self._open.values()], key=lambda each: each.start_s)
            self._context = Context(
                tuple(each for each in found if isinstance(each, Change)),
                tuple(each for each in found if isinstance(each, KubernetesTrouble)),
            )
        return self._context
