"""Models of rows of columns: scikit-learn and XGBoost, with their preprocessing, as one ONNX file.

Read `spec.py` (the artifact), `model.py` (the runtime) and `computer.py` (requests) first; a server needs
no more. `packaging/packager.py` makes artifacts, `packaging/compose.py` the ONNX file.
"""

from hopline_tabular.spec import Column

__all__ = ["Column", "__version__"]
__version__ = "0.1.0"
