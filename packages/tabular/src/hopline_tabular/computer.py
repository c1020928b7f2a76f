"""A loaded tabular model as a computer: checks columns, answers rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NoReturn

import numpy as np
from msgspec.structs import asdict

from hopline.answering.computer import Computer
from hopline.config.schema import Config
from hopline.errors import BadRequest, HoplineError, RequestTooLarge
from hopline.graph.cell_text import shown
from hopline.scheduling.work import Work
from hopline.types import AnyArray, FloatArray, ModelInfo, ScoreRequest, ScoreResult
from hopline_tabular.model import TabularModel
from hopline_tabular.spec import Column, describe, model_hashes

#: Beyond it a number is infinite to models that compute in float32.
LARGEST = float(np.finfo(np.float32).max)
#: Beyond it a float64 no longer tells neighbouring whole numbers apart.
LARGEST_INT = 2**53
#: Values that are looked at one by one.
_FEW = 32
_WORDS = {"float": "a number", "int": "a whole number", "string": "a string"}
_TYPES: dict[str, type] = {"float": float, "int": int, "string": str}


class ColumnCheck:
    """Checks values of one column; made once for each, since requests are many.

    Args:
        column: what the model takes.
        wanted: its type in words, if not that of the model.
    """

    def __init__(self, column: Column, wanted: str = "") -> None:
        self.name = column.name
        self._wanted = wanted or _WORDS[column.dtype]
        self._column = column
        self._type: Any = _TYPES[column.dtype]
        self._largest: float = LARGEST if column.dtype == "float" else LARGEST_INT
        self._values: Collection[Any] = frozenset(column.values)

    def check(self, values: Any) -> int:
        """Number of values.

        Args:
            values: list or array, one for each row.

        Raises:
            BadRequest: not a list, or a value that the column cannot have, with its row.
        """
        if type(values) is not list:
            is_few = type(values) is np.ndarray and values.ndim == 1 and values.size < _FEW
            if not is_few or (self._type is int and values.dtype.char in "ef"):
                return self._check_array(values)
            values = values.tolist()  # of a few, each costs less than one look at all of them
        count = len(values)
        if count == 1 and not self._values:  # most requests, at most values
            value = values[0]
            if type(value) is self._type and (
                self._type is str or -self._largest <= value <= self._largest
            ):
                return 1
        if count < _FEW or not self._is_fine(values):
            self._check_each(values)
        if self._values:
            self._check_known(values)
        return count

    def _is_fine(self, values: list[Any]) -> bool:
        """True if every value is of the usual type and size; a tenth of the time of looking at each."""
        kinds = set(map(type, values))
        if self._column.nullable:
            kinds.discard(type(None))
        if self._type is str:
            return kinds <= {str}
        if not kinds <= ({int, float} if self._column.dtype == "float" else {int}):
            return False
        try:
            array = np.array(values, dtype=np.float64)  # None becomes NaN
        except OverflowError:  # a whole number that no float holds
            return False
        fine = np.abs(array) <= self._largest - (self._type is int)  # 2^53 may be 2^53 + 1, rounded
        if self._column.nullable:
            fine |= np.isnan(array)
        return bool(fine.all())

    def _check_array(self, values: Any) -> int:
        if isinstance(values, tuple):
            return self.check(list(values))
        if not isinstance(values, np.ndarray):
            self._refuse(None, f"{type(values).__name__} instead of a list of values")
        if values.ndim != 1:
            self._refuse(None, f"shape {list(values.shape)}; one value for each row is needed")
        if self._type is str or values.dtype.kind not in "fiu":
            return self.check(values.tolist())
        is_narrow = self._type is int and values.dtype.char in "ef"
        most = 2 ** (np.finfo(values.dtype).nmant + 1) - 1 if is_narrow else self._largest
        bad = ~((values >= -most) & (values <= most))
        if values.dtype.kind == "f":
            if self._type is int:
                bad |= values != np.floor(values)
            if self._column.nullable:
                bad &= ~np.isnan(values)
        if bad.any():
            row = int(bad.argmax())
            self._refuse_value(row, values[row].item(), most)
        if self._values:
            self._check_known(values.tolist())
        return len(values)

    def _check_each(self, values: Sequence[Any]) -> None:
        """The same value by value, and NaN, infinities and whole floats besides."""
        for row, value in enumerate(values):
            if value is None and self._column.nullable:
                continue
            kind = type(value)
            if self._type is str:
                if isinstance(value, str):
                    continue
            elif kind is float or kind is int or isinstance(value, np.number):
                if value != value and self._column.nullable:
                    continue
                is_whole = self._column.dtype == "float" or value == value // 1
                if -self._largest <= value <= self._largest and is_whole:
                    continue
            self._refuse_value(row, value)

    def _check_known(self, values: Sequence[Any]) -> None:
        for row, value in enumerate(values):
            if value is not None and value == value and value not in self._values:
                known = ", ".join(repr(one) for one in self._column.values[:10])
                more = ", …" if len(self._column.values) > 10 else ""
                self._refuse(row, f"{value!r} is unknown to the model; known are {known}{more}")

    def _refuse_value(self, row: int, value: Any, most: float = 0) -> NoReturn:
        if value is None or value != value:
            self._refuse(row, f"no value, but {self._wanted} is needed")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and self._type is not str and not abs(value) <= (most or self._largest):
            self._refuse(row, f"{value!r} is beyond ±{most or self._largest:g}")
        self._refuse(row, f"{shown(value)} instead of {self._wanted}")

    def _refuse(self, row: int | None, text: str) -> NoReturn:
        at = "" if row is None else f", row {row}"
        raise BadRequest(f"column {self.name!r}{at}: {text}")


#: Rows of a request whose preprocessed form the prediction log may have.
_SHOWN_ROWS = 64


class TabularComputer(Computer):
    """Answers rows of columns with a model that reads no graph.

    Args:
        model: loaded, used by nothing else.
        config: limits.
        version: what it is served as, where that is not the artifact's own version.
    """

    def __init__(self, model: TabularModel, config: Config, version: str | None = None) -> None:
        spec = model.spec
        super().__init__(
            spec.name,
            version or spec.version,
            row_bytes=8 * len(spec.columns) + 4 * spec.output_dim,
        )
        self.model = model
        self.spec = spec
        self._max_rows = config.limits.max_nodes_per_request
        self.output_names = self.default_outputs = spec.outputs
        self._checks = [(column.name, ColumnCheck(column).check) for column in spec.columns]
        self._defaults = {column.name for column in spec.columns if column.default is not None}

    def warm_up(self) -> None:
        """Answer made-up rows, alone and together."""
        columns = {column.name: [made_up(column)] for column in self.spec.columns}
        for count in (1, 33):
            self.model.answer([columns] * count, [1] * count)

    def num_seeds(self, request: ScoreRequest) -> int:
        """As `Computer.num_seeds`."""
        columns = request.columns
        named = len(request.nodes) or request.inline or request.context or request.ends is not None
        if columns is None or named:
            known = self._takes()
            raise BadRequest(f"model {self.name!r} takes rows or columns of {known}, not nodes or pairs")
        count = -1
        try:
            for name, check in self._checks:
                found = check(columns[name]) if name in columns else self._absent(name, count)
                if found != count:
                    count = found if count < 0 else self._uneven(request)
        except BadRequest as error:
            raise BadRequest(f"model {self.name!r}: {error}") from None
        others = request.outputs or request.edits or request.exclude_seed_edges or request.as_of is not None
        if len(columns) > len(self._checks) or count < 1 or others:
            count = self._check_rest(request, count)
        if count > self._max_rows:
            raise RequestTooLarge(
                f"{count} rows in one request; at most {self._max_rows} are allowed "
                "(limits.max_nodes_per_request)"
            )
        return count

    def _absent(self, name: str, count: int) -> int:
        if name not in self._defaults:
            raise BadRequest(f"column {name!r} is missing; rows have {self._takes()}")
        return count

    def _uneven(self, request: ScoreRequest) -> int:
        lengths = {name: len(values) for name, values in (request.columns or {}).items()}
        shown = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise BadRequest(f"columns are of unequal length: {shown}")

    def _check_rest(self, request: ScoreRequest, count: int) -> int:
        """Number of rows of a request that needs no further checks."""
        columns = request.columns or {}
        unexpected = [name for name in columns if name not in dict(self._checks)]
        if unexpected:
            raise BadRequest(
                f"unexpected column {unexpected[0]!r}: rows of model {self.name!r} have {self._takes()}"
            )
        for name in sorted({*request.outputs} - {*self.output_names}):
            raise BadRequest(
                f"output {name!r} is unknown; model {self.name!r} has {', '.join(self.output_names)}"
            )
        if request.as_of is not None or request.edits or request.exclude_seed_edges:
            name = "as_of" if request.as_of is not None else "if" if request.edits else "exclude_seed_edges"
            raise BadRequest(f"{name}: model {self.name!r} reads no edges; leave {name} out")
        if count == 0 or (count < 0 and not columns):
            raise BadRequest("the request has no rows; at least one is needed")
        return max(count, 1)

    def _takes(self) -> str:
        return ", ".join(
            f"{column.name} ({column.dtype}{', may be null' if column.nullable else ''})"
            for column in self.spec.columns
        )

    def run(self, batch: list[Work]) -> Sequence[ScoreResult | HoplineError | None]:
        """As `Computer.run`."""
        counts = [work.num_seeds for work in batch]
        found = self.model.answer([work.request.columns or {} for work in batch], counts)
        labels: AnyArray | None = None
        is_whole = not np.isnan(found).any()
        results: list[ScoreResult | HoplineError | None] = []
        end = 0
        for work, count in zip(batch, counts, strict=True):
            begin, end = end, end + count
            values = found[begin:end]  # copied below: who keeps an answer must not keep its whole batch
            if not is_whole and np.isnan(values).any():
                results.append(self._no_answer(values))
                continue
            outputs: dict[str, AnyArray] = {}
            for name in work.request.outputs or self.output_names:
                if name == "label":
                    if labels is None:
                        labels = self.model.labels(found)
                    outputs[name] = labels[begin:end].copy()
                else:
                    outputs[name] = values.copy()
            results.append(ScoreResult(self.name, self.version, "", outputs))
        return results

    def _no_answer(self, values: FloatArray) -> HoplineError:
        row = int(np.isnan(values.reshape(len(values), -1)).any(axis=1).argmax())
        return BadRequest(
            f"model {self.name!r} has no answer for row {row}: its values are outside of what the "
            "preprocessing is defined for (the logarithm of a negative number, say)"
        )

    def preprocessed(self, request: ScoreRequest) -> dict[str, AnyArray]:
        """As `Preprocessing.preprocessed`: what the last step was given; {} where it is the only one."""
        if self.spec.preprocess_file is None or request.columns is None:
            return {}
        columns = {name: values[:_SHOWN_ROWS] for name, values in request.columns.items()}
        count = max((len(values) for values in columns.values()), default=1)
        return {"features": self.model.preprocess(columns, count)}

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        """Description of this version for transports."""
        spec = self.spec
        properties = {
            "task": spec.task,
            "columns": [asdict(column) | {"values": list(column.values)} for column in spec.columns],
            "classes": list(spec.classes),
            "parity": spec.parity,
            "preprocessing": spec.preprocessing,
            **model_hashes(spec),
            "opset": spec.opset,
            "ml_opset": spec.ml_opset,
        }
        return describe(spec, versions, self.version, state="READY", reason="", properties=properties)


def made_up(column: Column) -> Any:
    """A valid value of a column."""
    known = [each for each in (*column.values[:1], column.default) if each is not None]
    return known[0] if known else "" if column.dtype == "string" else 0
