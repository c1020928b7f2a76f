"""Weights as training saved them, for `hopline package --state-dict`.

`checkpoint` finds the state dict of a module in a file; `renamed` converts names of earlier PyG.
"""

__version__ = "0.1.0"
