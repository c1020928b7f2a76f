"""Distillation: trains a student without the graph from a teacher that reads the graph at every request."""
