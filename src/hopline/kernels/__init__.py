"""Numba: its decorator, its cache, and instructions that it lacks."""
