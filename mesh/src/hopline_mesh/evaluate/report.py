"""What `hopline mesh evaluate` found: scores of one or more detectors on one recording."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hopline.errors import ConfigError
from hopline_mesh.detector import Detector
from hopline_mesh.evaluate.baselines import BASELINES, baseline
from hopline_mesh.evaluate.plot import draw
from hopline_mesh.evaluate.recording import Period, Recording
from hopline_mesh.evaluate.scores import Scores
from hopline_mesh.incident import Verdict

#: Names that `detector` knows.
DETECTORS = ("tagae", *BASELINES)


class Judged(msgspec.Struct, frozen=True):
    """One detector's scores and how long it took.

    Attributes:
        detector: its name.
        scores: see `Scores`.
        fit_s: seconds that learning took.
        step_ms: median milliseconds of an interval.
        unjudged: intervals of which it said nothing, for it was still learning or too much was missing.
    """

    detector: str
    scores: Scores
    fit_s: float
    step_ms: float
    unjudged: int


class Report(msgspec.Struct, frozen=True):
    """All that is told of a recording.

    Attributes:
        name: of the recording.
        train: that was learned from.
        test: that was judged.
        snapshots: how many of each: training, test.
        events_in_training: events that begin in the training, and so may be taken as normal.
        interval_s: seconds from one snapshot to the next.
        grace_s: see `scores`.
        detectors: best last, as they were asked for.
    """

    name: str
    train: tuple[Period, ...]
    test: tuple[Period, ...]
    snapshots: tuple[int, int]
    events_in_training: int
    interval_s: float
    grace_s: float
    detectors: tuple[Judged, ...]


def detector(name: str, recording: Recording) -> Detector:
    """A fresh detector by name.

    Raises:
        ConfigError: no such detector.
    """
    if name == "tagae":
        from hopline_mesh.tagae import Tagae

        return Tagae()
    if name not in BASELINES:
        raise ConfigError(f"no detector {name!r}; there are {', '.join(DETECTORS)}")
    return baseline(name, recording)


def write_report(
    report: Report, recording: Recording, verdicts: dict[str, list[Verdict]], folder: Path
) -> None:
    """Write `report.json` and a drawing of each detector, `<detector>.svg`, into a new or old folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    for judged in report.detectors:
        drawing = draw(judged.detector, recording, verdicts[judged.detector], judged.scores)
        (folder / f"{judged.detector}.svg").write_text(drawing, "utf-8")
