"""What happened in a mesh between two intervals: numbers of a service or of a call path, or its end."""

from __future__ import annotations

import msgspec

from hopline.errors import BadRequest


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One event; of a service, or of a call path.

    Attributes:
        service: whose numbers changed.
        caller, callee: the call path whose numbers changed, or that comes with them.
        values: column -> value, in the units of the snapshots; None is not measured any more. Columns that
            are left out stay as they are.
        gone: the call path is there no more.
    """

    service: str = ""
    caller: str = ""
    callee: str = ""
    values: dict[str, float | None] = {}
    gone: bool = False

    def check(self) -> None:
        """Raises: BadRequest: it is about nothing, about two things, or says nothing."""
        if bool(self.service) == bool(self.caller or self.callee):
            raise BadRequest("an event is about a service, or about a call path: caller and callee")
        if bool(self.caller) != bool(self.callee):
            raise BadRequest("an event of a call path names caller and callee")
        if self.gone and (self.service or self.values):
            raise BadRequest(
                "gone: only a call path can be, and has no values then; a service that goes is seen in the "
                "next interval"
            )
        if not self.gone and not self.values and self.service:
            raise BadRequest(f"the event of {self.service!r} has no values")
