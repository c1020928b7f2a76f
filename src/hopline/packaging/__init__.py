"""Turns a PyG module into an artifact. Importing this imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopline.doors import brought

if TYPE_CHECKING:
    from hopline.packaging.packager import package
    from hopline.packaging.report import PackageReport
    from hopline_tabular.packaging import TabularReport, package_tabular

__all__ = ["PackageReport", "TabularReport", "package", "package_tabular"]


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
    return brought(__name__)(name)
