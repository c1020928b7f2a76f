"""The process that writes a live graph, and its clients."""
