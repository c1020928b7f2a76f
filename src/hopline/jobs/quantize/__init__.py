"""Packaged models with narrower weights: calibrated, tried by layer, written only where they hold."""
