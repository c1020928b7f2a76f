"""The names of `hopline_ray`, which the package hopline-ray brings."""

from hopline.doors import brought

__getattr__ = brought(__name__)
