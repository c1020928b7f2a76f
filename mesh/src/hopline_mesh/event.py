"""An event between two intervals: new values of a service or call path, or the end of a call path."""

from __future__ import annotations

import msgspec

from hopline.errors import BadRequest


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One event of a service, or of a call path.

    Attributes:
        service: the service whose values changed.
        caller, callee: the call path whose values changed, or that is new.
        values: column -> value, in the units of the snapshots; None is not measured any more. Missing
            columns keep their values.
        gone: the call path does not exist any more.
    """

    service: str = ""
    caller: str = ""
    callee: str = ""
    values: dict[str, float | None] = {}
    gone: bool = False

    def check(self) -> None:
        """Check the fields.

        Raises:
            BadRequest: no target, two targets, or no values.
        """
        if bool(self.service) == bool(self.caller or self.callee):
            raise BadRequest("an event needs either a service, or a call path: caller and callee")
        if bool(self.caller) != bool(self.callee):
            raise BadRequest("an event of a call path needs caller and callee")
        if self.gone and (self.service or self.values):
            raise BadRequest(
                "gone: allowed only for a call path, without values; the next interval detects a removed "
                "service"
            )
        if not self.gone and not self.values and self.service:
            raise BadRequest(f"the event of {self.service!r} has no values")
