"""Processes: their ports, CPUs and time slices."""
