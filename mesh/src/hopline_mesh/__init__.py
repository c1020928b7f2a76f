"""TAGAE: watch a service mesh with a temporal-attentive graph autoencoder.

A service is a node, a call path between two services an edge. Every interval one `Snapshot` is collected,
the model says what it would have expected to see, and what differs more than it did in normal time becomes
an `Incident` with ranked services.
"""

__version__ = "0.1.0"
