"""A tabular model in ONNX Runtime: columns of many requests in, arrays of outputs out.

The file has two inputs at most, a matrix of numbers and one of strings, whatever the number of columns:
each input of a session costs its share of a microsecond, and a matrix is filled in one step (log/).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hopline.errors import RuntimeFailure
from hopline.runtimes.onnx import session
from hopline.runtimes.ort import ort
from hopline.types import AnyArray, FloatArray
from hopline_tabular.spec import NULL_STRING, TabularSpec

#: Column name -> one value for each row: a list, or an array of numbers. None and NaN mean absent.
Columns = Mapping[str, Any]
#: Probabilities this close to each other are equal: a sum of a thousand trees in float32 is off by 8e-6.
_EQUAL = 1e-5


class TabularModel:
    """A packaged tabular model, loaded.

    Args:
        folder: `<repository>/<model>/<version>`.
        spec: its model.json.

    A row's answer does not depend on other rows: one thread computes, and calls with fewer rows than
    `spec.min_rows` are padded.
    """

    def __init__(self, folder: Path, spec: TabularSpec) -> None:
        self.spec = spec
        self.folder = folder
        self._run = session(folder / spec.file)._sess.run
        self._output = "logits" if spec.task == "regression" else "probabilities"
        self._numbers = [column for column in spec.columns if column.dtype != "string"]
        self._strings = [column for column in spec.columns if column.dtype == "string"]
        self._preprocess: ort.InferenceSession | None = None

    def answer(self, requests: Sequence[Columns], counts: Sequence[int]) -> FloatArray:
        """Compute the rows of some requests, in order.

        Args:
            requests: checked columns; a missing column gets its default.
            counts: rows of each request.

        Returns: `probabilities` or `logits` of all rows, in a new array.

        Raises:
            RuntimeFailure: ONNX Runtime failed.
        """
        total = sum(counts)
        num_rows = max(total, self.spec.min_rows)
        try:
            result: FloatArray = self._run([self._output], self._feeds(requests, counts, num_rows), None)[0]
        except Exception as error:  # onnxruntime raises its own errors, without a common public base
            raise RuntimeFailure(f"{self.spec.file} failed in ONNX Runtime: {error}") from error
        return result if num_rows == total else result[:total]

    def preprocess(self, columns: Columns, count: int) -> AnyArray:
        """The input of the estimator's last step: float64 or float32 [n, features].

        For comparing training with serving; opens a separate file at the first call.

        Raises:
            RuntimeFailure: this model has no preprocessing, or ONNX Runtime failed.
        """
        name = self.spec.preprocess_file
        if name is None:
            raise RuntimeFailure(f"model {self.spec.name!r} has no preprocessing before its last step")
        if self._preprocess is None:
            self._preprocess = session(self.folder / name)
        wanted = {item.name for item in self._preprocess.get_inputs()}
        feeds = self._feeds([columns], [count], count)
        try:
            features: AnyArray = self._preprocess.run(
                ["features"], {key: value for key, value in feeds.items() if key in wanted}
            )[0]
        except Exception as error:  # as above
            raise RuntimeFailure(f"{name} failed in ONNX Runtime: {error}") from error
        return features

    def labels(self, result: FloatArray) -> AnyArray:
        """Class number of each row, int64 [n]; the first of equally probable classes, as estimators do.

        A forest's sum of its trees in float32 is off by some rounding from equal.
        """
        if self.spec.task == "binary":
            return (result > 0.5 + _EQUAL).astype(np.int64)
        winners: AnyArray = (result >= result.max(axis=1, keepdims=True) - _EQUAL).argmax(axis=1)
        return winners

    def _feeds(
        self, requests: Sequence[Columns], counts: Sequence[int], num_rows: int
    ) -> dict[str, AnyArray]:
        feeds: dict[str, AnyArray] = {}
        if self._numbers:
            numbers = np.empty((num_rows, len(self._numbers)))
            names = self._numbers
            at = 0
            for columns, count in zip(requests, counts, strict=True):
                if count == 1:
                    # one conversion for the row takes a fifth of one for each column
                    numbers[at] = [
                        columns[item.name][0] if item.name in columns else item.default for item in names
                    ]
                else:
                    for place, item in enumerate(names):
                        numbers[at : at + count, place] = columns.get(item.name, item.default)
                at += count
            numbers[at:] = numbers[:1]  # see `min_rows`
            feeds["numbers"] = numbers
        if self._strings:
            texts: list[Any] = []
            for columns, count in zip(requests, counts, strict=True):
                if count == 1:
                    texts += [
                        columns[item.name][0] if item.name in columns else item.default
                        for item in self._strings
                    ]
                else:
                    given = [
                        columns[item.name] if item.name in columns else [item.default] * count
                        for item in self._strings
                    ]
                    for row in zip(*given, strict=True):
                        texts += row
            if None in texts:
                texts = [NULL_STRING if text is None else text for text in texts]
            texts += texts[: len(self._strings)] * (num_rows - len(texts) // len(self._strings))
            strings = np.array(texts, dtype=object)
            feeds["strings"] = strings.reshape(num_rows, len(self._strings))
        return feeds
