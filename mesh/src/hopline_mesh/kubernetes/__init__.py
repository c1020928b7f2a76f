"""What Kubernetes knows of a mesh: planned changes, and troubles that it reports itself.

`watcher` asks the API server, `feed` understands what it hears, and `hopline_mesh.changes.Context` is what
comes out. The two are apart: the feed is told everything, the time included.
"""
