"""Watch a service mesh: a robust detector for each series, and a regression on neighbours.

A service is a node, a call path between two services an edge. Every interval one `Snapshot` is collected.
Each number is compared with its own past, and with what its neighbours lead to expect. Deviations that are
larger than in normal time become an `Incident` with ranked suspects.
"""

__version__ = "0.1.0"
