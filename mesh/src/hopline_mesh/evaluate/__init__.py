"""Judge a detector on any mesh that was recorded: folder format, scoring, baselines."""

from hopline_mesh.evaluate.recording import Event, Period, Recording
from hopline_mesh.evaluate.scores import Scores, score

__all__ = ["Event", "Period", "Recording", "Scores", "score"]
