"""Turns a fitted estimator into an artifact. Needs scikit-learn and what the extra `tabular` installs."""

from hopline_tabular.packaging.packager import TabularReport, package_tabular

__all__ = ["TabularReport", "package_tabular"]
