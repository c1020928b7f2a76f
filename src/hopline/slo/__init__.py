"""Service-level objectives: what was promised, what was kept, and how fast the rest is being used up."""
