"""The temporal-attentive graph autoencoder: computes expected values of a mesh, given its past.

Knows float arrays and edges by position; nothing of services, metrics or scores.
"""

import hopline.kernels.jit  # noqa: F401  first: importing Numba without it imports SciPy
