"""`hopline demo`: builds a payment network with fraud rings, trains a model, and serves it.

Read in this order: `network` (the generated data), `learning` (the model), `recipe` (generate, train,
package, once), `process` (the server as a child process), `screen` (output), `show` (the whole demo).
"""

__version__ = "0.1.0"
