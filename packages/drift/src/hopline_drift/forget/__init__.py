"""Forgets nodes: removes them from a graph, and erases what data folders still hold of them."""
