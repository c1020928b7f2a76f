"""The names of `hopline_serverless`, which the package hopline-serverless brings."""

from hopline.doors import brought

__getattr__ = brought(__name__)
