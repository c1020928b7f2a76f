"""The report of `hopline mesh evaluate`: scores of one or more detectors on one recording."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hopline.errors import ConfigError
from hopline_mesh.evaluate.baselines import BASELINES, static
from hopline_mesh.evaluate.baselines.alarm import MIN_DURATION_S
from hopline_mesh.evaluate.plot import draw
from hopline_mesh.evaluate.recording import Event, Period, Recording
from hopline_mesh.evaluate.run import Detector
from hopline_mesh.evaluate.scores import Scores
from hopline_mesh.incident import Verdict

#: The detector of the watch, and the same without the regression on neighbours: what that adds.
ABLATION = ("watch", "none")
#: Names that `detector` knows.
DETECTORS = (*ABLATION, *BASELINES)


class Judged(msgspec.Struct, frozen=True):
    """The scores and times of one detector.

    Attributes:
        detector: its name.
        scores: see `Scores`.
        fit_s: seconds of the training.
        step_ms: median milliseconds of an interval.
        unjudged: number of intervals without a verdict, while learning or with too few measurements.
    """

    detector: str
    scores: Scores
    fit_s: float
    step_ms: float
    unjudged: int


class Failed(msgspec.Struct, frozen=True):
    """A detector that could not judge the recording, and why."""

    detector: str
    reason: str


class NotCounted(Event, frozen=True):
    """An event that counts neither in the training nor in the test.

    Attributes:
        reason: such as "outside of the recording".
    """

    reason: str = ""


class Report(msgspec.Struct, frozen=True):
    """The report on a recording.

    Attributes:
        name: of the recording.
        train: training periods.
        test: test periods.
        snapshots: numbers in training and test.
        events_in_training: number of events that begin in the training, and so may be learned as normal.
        events_outside: labelled events that count nowhere, and why.
        interval_s: seconds from one snapshot to the next.
        recorded_interval_s: as `interval_s`, for the folder; if it is shorter, snapshots are averages.
        notes: see `Recording`.
        grace_s: see `scores`.
        min_duration_s: how long a deviation had to last, for every detector.
        detectors: in the order of the request.
        failed: detectors without scores.
    """

    name: str
    train: tuple[Period, ...]
    test: tuple[Period, ...]
    snapshots: tuple[int, int]
    events_in_training: int
    events_outside: tuple[NotCounted, ...]
    interval_s: float
    recorded_interval_s: float
    notes: tuple[str, ...]
    grace_s: float
    min_duration_s: float
    detectors: tuple[Judged, ...]
    failed: tuple[Failed, ...] = ()


def detector(name: str, recording: Recording, min_duration_s: float = MIN_DURATION_S) -> Detector:
    """Create a detector by name for a recording, without access to its events.

    Args:
        min_duration_s: how long a deviation must last.

    Raises:
        ConfigError: no such detector.
    """
    if name in ABLATION:
        from hopline_mesh.detect import DetectorSettings, MeshDetector

        return MeshDetector(DetectorSettings(min_duration_s=min_duration_s), neighbours=name == "watch")
    if name not in BASELINES:
        raise ConfigError(f"no detector {name!r}; choose from {', '.join(DETECTORS)}")
    if name == "static":
        return static(cpu_limits=recording.cpu_limits, min_duration_s=min_duration_s)
    return BASELINES[name](min_duration_s=min_duration_s)


def write_report(
    report: Report, recording: Recording, verdicts: dict[str, list[Verdict]], folder: Path
) -> None:
    """Write `report.json` and a plot of each detector, `<detector>.svg`, to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    for judged in report.detectors:
        drawing = draw(judged.detector, recording, verdicts[judged.detector], judged.scores)
        (folder / f"{judged.detector}.svg").write_text(drawing, "utf-8")
