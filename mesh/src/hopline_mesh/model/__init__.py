"""The temporal-attentive graph autoencoder: computes expected values of a mesh, given its past.

Knows float arrays and edges by position; nothing of services, metrics or scores.
"""

import hopline.kernels.jit  # noqa: F401  before anything imports Numba by itself, which would import SciPy
