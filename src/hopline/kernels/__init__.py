"""Numba: its decorator, its cache, and processor instructions that it lacks."""
