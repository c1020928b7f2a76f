"""Pauses before something is tried again: a process that ended, a connection that was lost."""

from __future__ import annotations


class Backoff:
    """Doubles the pause with each failure.

    Args:
        first_s, longest_s: of the pauses.
        steady_s: what worked for longer than this begins with the first pause again.

    Attributes:
        pause_s: the next pause.
    """

    def __init__(self, first_s: float = 0.1, longest_s: float = 10.0, steady_s: float = 30.0) -> None:
        self._first_s, self._longest_s, self._steady_s = first_s, longest_s, steady_s
        self.pause_s = first_s

    def failed(self, worked_s: float = 0.0) -> float:
        """The pause before the next attempt.

        Args:
            worked_s: how long the last attempt had worked.
        """
        if worked_s > self._steady_s:
            self.pause_s = self._first_s
        pause_s, self.pause_s = self.pause_s, min(2 * self.pause_s, self._longest_s)
        return pause_s

    def worked(self) -> None:
        """An attempt has worked: begin with the first pause again."""
        self.pause_s = self._first_s
