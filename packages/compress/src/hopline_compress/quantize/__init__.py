"""Packaged models with narrower weights: calibrated, tried by layer, written only within bounds."""
