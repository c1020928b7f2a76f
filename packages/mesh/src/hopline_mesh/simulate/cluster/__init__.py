"""A simulated Kubernetes API for a simulated mesh: lists, watches, bookmarks, 410 Gone.

It is read-only, without authentication, and has only what a client must handle.
"""
