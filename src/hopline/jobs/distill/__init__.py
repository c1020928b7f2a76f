"""Distillation: a teacher that needs the graph at every request makes a student that does not."""
