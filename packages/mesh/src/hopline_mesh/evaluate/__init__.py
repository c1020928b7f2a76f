"""Evaluation of detectors on recorded meshes: folder format, scoring, simple detectors to compare with."""

from hopline_mesh.evaluate.recording import Event, Period, Recording
from hopline_mesh.evaluate.scores import Scores, score

__all__ = ["Event", "Period", "Recording", "Scores", "score"]
