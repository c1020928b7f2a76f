"""What happens to a graph, as people write it: JSON or Arrow in, columns of changes out."""
