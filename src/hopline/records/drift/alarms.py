"""When a difference is an alert: a threshold, held for some windows, and let go of lower than taken.

Pure: knows comparisons and levels, neither files nor clocks.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from hopline.observe.psi import Comparison

Level: TypeAlias = Literal["ok", "watch", "alert"]
LEVELS: tuple[Level, ...] = ("ok", "watch", "alert")

#: A level is left below this share of its threshold: at the threshold itself it would flap.
RELEASE = 0.8
#: Fewer values than that decide nothing.
MIN_VALUES = 50


class Alarm(msgspec.Struct):
    """The state of one quantity.

    Attributes:
        level: now.
        since: when it took that level, time.time(); 0 for ever.
        num_watch, num_alert: windows in a row that passed each threshold.
        num_below: windows in a row well below the present level's.
    """

    level: Level = "ok"
    since: float = 0.0
    num_watch: int = 0
    num_alert: int = 0
    num_below: int = 0


class AlarmRule(msgspec.Struct, frozen=True):
    """Attributes:
    watch, alert: thresholds of the index less what chance makes of it.
    hold: windows in a row that it takes to rise or to fall.
    """

    watch: float
    alert: float
    hold: int

    def step(self, alarm: Alarm, comparison: Comparison, now: float) -> bool:
        """Bring an alarm up to date with one more window; whether its level changed."""
        if min(comparison.num_reference, comparison.num_current) < MIN_VALUES:
            return False
        is_watch, is_alert = comparison.above(self.watch), comparison.above(self.alert)
        alarm.num_watch = alarm.num_watch + 1 if is_watch else 0
        alarm.num_alert = alarm.num_alert + 1 if is_alert else 0
        left = {"ok": 0.0, "watch": RELEASE * self.watch, "alert": RELEASE * self.alert}[alarm.level]
        alarm.num_below = alarm.num_below + 1 if comparison.excess < left else 0
        level = alarm.level
        if alarm.num_alert >= self.hold:
            level = "alert"
        elif alarm.num_watch >= self.hold and level == "ok":
            level = "watch"
        elif alarm.num_below >= self.hold:
            level = "watch" if alarm.num_watch >= self.hold else "ok"
        if level == alarm.level:
            return False
        alarm.level, alarm.since, alarm.num_below = level, now, 0
        return True
