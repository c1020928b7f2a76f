"""Events of a graph: JSON or Arrow in, columns of changes out."""
