"""A look-alike of the Kubernetes API for a simulated mesh: lists, watches, bookmarks, 410 Gone.

What a client of the real thing has to cope with is here, and nothing else: reading only, no authentication.
"""
