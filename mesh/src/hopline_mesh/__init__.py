"""TAGAE: watch a service mesh with a temporal-attentive graph autoencoder.

A service is a node, a call path between two services an edge. Every interval one `Snapshot` is collected,
and the model computes its expected values. Deviations that are larger than in normal time become an
`Incident` with ranked suspects.
"""

__version__ = "0.1.0"
