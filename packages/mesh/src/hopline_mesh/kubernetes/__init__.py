"""Kubernetes as a source of planned changes and troubles.

`watcher` reads objects from the API server, `feed` interprets them, and the result is a
`hopline_mesh.changes.Context`. The feed gets all input as arguments, including the time.
"""
