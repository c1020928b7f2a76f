"""Scoring a whole graph: levels computed row by row into files, results published to a sink."""
