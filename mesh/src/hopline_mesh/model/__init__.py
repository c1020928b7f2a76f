"""The temporal-attentive graph autoencoder: what a mesh looks like, given its past.

Knows float arrays and edges by position; nothing of services, metrics or scores.
"""

import hopline.kernels.jit  # noqa: F401  before anything imports Numba by itself, which would import SciPy
