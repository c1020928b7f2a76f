"""The process that writes a live graph, and how others ask it."""
