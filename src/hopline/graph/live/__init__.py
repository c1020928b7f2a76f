"""Graphs that change while they are served."""
