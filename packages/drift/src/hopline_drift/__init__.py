"""Comparisons with the past: reports and references of drift, and replays of a prediction log."""

__version__ = "0.1.0"
