"""Phases of `benchmarks.features`: one file for each, and the processes that they need."""
