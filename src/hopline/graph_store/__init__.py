"""Graph stores: the edges of a graph that is larger than memory, or larger than a machine."""
