"""Decides when a difference is an alert: thresholds, consecutive windows and hysteresis.

Pure: knows comparisons and levels, no files and no clocks.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from hopline.observe.psi import Comparison

Level: TypeAlias = Literal["ok", "watch", "alert"]
LEVELS: tuple[Level, ...] = ("ok", "watch", "alert")

#: A level ends below this share of its threshold; ending at the threshold would flap.
RELEASE = 0.8
#: Fewer values than this are not evaluated.
MIN_VALUES = 50


class Alarm(msgspec.Struct):
    """The alarm state of one quantity.

    Attributes:
        level: current level.
        since: start of that level, time.time(); 0 if it never changed.
        num_watch, num_alert: windows in a row above each threshold.
        num_below: windows in a row well below the threshold of the current level.
    """

    level: Level = "ok"
    since: float = 0.0
    num_watch: int = 0
    num_alert: int = 0
    num_below: int = 0


class AlarmRule(msgspec.Struct, frozen=True):
    """The rule by which levels rise and fall.

    Attributes:
        watch, alert: thresholds of the index minus its expectation by chance.
        consecutive_windows: windows in a row after which a level rises or falls.
    """

    watch: float
    alert: float
    consecutive_windows: int

    def step(self, alarm: Alarm, comparison: Comparison, now: float) -> bool:
        """Update an alarm with one more window; return True if its level changed."""
        if min(comparison.num_reference, comparison.num_current) < MIN_VALUES:
            return False
        is_watch, is_alert = comparison.above(self.watch), comparison.above(self.alert)
        alarm.num_watch = alarm.num_watch + 1 if is_watch else 0
        alarm.num_alert = alarm.num_alert + 1 if is_alert else 0
        left = {"ok": 0.0, "watch": RELEASE * self.watch, "alert": RELEASE * self.alert}[alarm.level]
        alarm.num_below = alarm.num_below + 1 if comparison.excess < left else 0
        level = alarm.level
        if alarm.num_alert >= self.consecutive_windows:
            level = "alert"
        elif alarm.num_watch >= self.consecutive_windows and level == "ok":
            level = "watch"
        elif alarm.num_below >= self.consecutive_windows:
            level = "watch" if alarm.num_watch >= self.consecutive_windows else "ok"
        if level == alarm.level:
            return False
        alarm.level, alarm.since, alarm.num_below = level, now, 0
        return True
