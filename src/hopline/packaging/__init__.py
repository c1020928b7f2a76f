"""Turns a PyG module or a fitted estimator into an artifact. Importing this imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopline.packaging.packager import package
    from hopline.packaging.report import PackageReport
    from hopline.packaging.tabular.packager import TabularReport, package_tabular

__all__ = ["PackageReport", "TabularReport", "package", "package_tabular"]

_FOR_TABLES = ("sklearn", "skl2onnx", "onnxmltools", "xgboost", "pandas", "onnx")


def __getattr__(name: str) -> Any:
    if name == "package":
        try:
            from hopline.packaging.packager import package
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in ("torch", "torch_geometric", "onnx", "onnxscript"):
                raise
            raise ModuleNotFoundError(
                f"packaging needs {error.name}: pip install 'hopline[train]'", name=error.name
            ) from error
        return package
    if name == "PackageReport":
        from hopline.packaging.report import PackageReport

        return PackageReport
    if name in ("TabularReport", "package_tabular"):
        try:
            from hopline.packaging.tabular import packager
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in _FOR_TABLES:
                raise
            raise ModuleNotFoundError(
                f"packaging tabular models needs {error.name}: pip install 'hopline[tabular]'",
                name=error.name,
            ) from error
        return getattr(packager, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
