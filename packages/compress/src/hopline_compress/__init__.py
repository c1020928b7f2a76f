"""Smaller models from packaged ones: students that read no neighbours, and weights of fewer bits."""

__version__ = "0.1.0"
