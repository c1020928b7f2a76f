"""Graphs of steps declared in a `pipeline.toml`: models, rules, routes, ensembles, computed columns."""

from hopline_pipelines.version import PipelineVersion, load_pipeline

__all__ = ["PipelineVersion", "load_pipeline"]
__version__ = "0.1.0"
