"""Service-level objectives of models: the file format, and the outcomes that violate an objective.

    [models.risk]
    p99_ms = 5            # 99 % of answers within 5 ms, from admission to answer
    availability = 0.999  # share of valid requests that get an answer
    error_rate = 0.0005   # share of valid requests that may fail in the server, without refusals
    window = "30d"

    [stream]
    freshness_p99_ms = 100  # 99 % of events are reflected in answers within 100 ms

Valid requests are all except those that failed by the caller's fault or were withdrawn. Each objective has
a *budget*: the share of requests that may be bad before the objective is missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from hopline import errors
from hopline.config.reader import read_toml
from hopline.config.setting import did_you_mean
from hopline.errors import ConfigError, HoplineError

Kind: TypeAlias = Literal["p99_ms", "availability", "error_rate", "freshness_p99_ms"]
#: Kinds of objectives of a model.
KINDS: tuple[Kind, ...] = ("p99_ms", "availability", "error_rate")
#: Kinds of objectives of the stream that updates the graph.
STREAM_KINDS: tuple[Kind, ...] = ("freshness_p99_ms",)
#: Kinds in milliseconds, with the largest value that a histogram can measure.
LATENCIES: dict[Kind, int] = {"p99_ms": 10_000, "freshness_p99_ms": 60_000}
#: Used as the model's name in objectives of the stream.
STREAM = "stream"

_WINDOW = re.compile(r"([1-9]\d*)([dw])")
_DAYS = {"d": 1, "w": 7}
#: Shortest window in days: alerts measure an hour or more, in which a smaller budget would be used up.
_SHORTEST_DAYS = 3


def codes(*kinds: type[HoplineError]) -> frozenset[str]:
    """Codes of these errors and their subclasses, which are the outcomes in metrics."""
    return frozenset(code for code, kind in errors.BY_CODE.items() if issubclass(kind, kinds))


#: Outcomes caused by the caller; objectives exclude them.
NOT_VALID = frozenset({"cancelled"}) | codes(
    errors.BadRequest,
    errors.ModelNotFound,
    errors.RateLimited,
    errors.Unauthenticated,
    errors.PermissionDenied,
    errors.Conflict,
)
#: Outcomes of valid requests that were rejected or too late; all other errors are failures.
REFUSALS = (
    codes(
        errors.Overloaded,
        errors.Unavailable,
        errors.DeadlineExceeded,
        errors.ModelNotReady,
        errors.FeatureStoreUnavailable,
    )
    - NOT_VALID
)


@dataclass(frozen=True, slots=True)
class Objective:
    """One objective of one model, or of the stream.

    Attributes:
        model: model name, or `STREAM`.
        target: milliseconds for kinds of `LATENCIES`, else a share.
        window_days: period of the budget.
    """

    model: str
    kind: Kind
    target: float
    window_days: int

    @property
    def budget(self) -> float:
        """Share of requests that may be bad."""
        if self.kind in LATENCIES:
            return 0.01
        return 1 - self.target if self.kind == "availability" else self.target

    @property
    def text(self) -> str:
        """The objective as text."""
        if self.kind == "p99_ms":
            return f"p99 ≤ {self.target:g} ms"
        if self.kind == "freshness_p99_ms":
            return f"freshness p99 ≤ {self.target:g} ms"
        if self.kind == "availability":
            return f"availability ≥ {100 * self.target:g} %"
        return f"error rate ≤ {100 * self.target:g} %"


def read_objectives(file: Path) -> list[Objective]:
    """Read an SLO file.

    Raises:
        ConfigError: the file cannot be read, or an entry is unknown or out of bounds.
    """
    tree = read_toml(file)
    for name in tree:
        if name not in ("models", STREAM):
            guess = did_you_mean(name, ["models", STREAM])
            raise ConfigError(
                f"{file}: {name}: unknown; objectives go in [models.<name>] and [stream]{guess}"
            )
    models = tree.get("models", {})
    if not isinstance(models, dict) or (not models and STREAM not in tree):
        raise ConfigError(f"{file}: no objectives; write a section [models.<name>] for each model")
    sections = [(f"models.{model}", model, entry, KINDS) for model, entry in models.items()]
    if STREAM in tree:
        sections.append((STREAM, STREAM, tree[STREAM], STREAM_KINDS))
    found = []
    for path, model, entry, kinds in sections:
        try:
            found += list(_read_section(path, model, entry, kinds))
        except ConfigError as error:
            raise ConfigError(f"{file}: {path}{error}") from None
    return found


def _read_section(path: str, model: str, entry: Any, of: tuple[Kind, ...]) -> Iterator[Objective]:
    if not isinstance(entry, dict):
        raise ConfigError(f": {entry!r} is not a section; write [{path}]")
    known = (*of, "window")
    for key in entry:
        if key not in known:
            raise ConfigError(
                f".{key}: unknown{did_you_mean(key, known) or '; known: ' + ', '.join(known)}"
            )
    window = entry.get("window", "30d")
    match = _WINDOW.fullmatch(window) if isinstance(window, str) else None
    window_days = int(match[1]) * _DAYS[match[2]] if match else 0
    if window_days < _SHORTEST_DAYS:
        raise ConfigError(f'.window: {window!r} is not a period of at least 3 days, such as "30d" or "4w"')
    kinds = [kind for kind in of if kind in entry]
    if not kinds:
        raise ConfigError(f": no objective; set at least one of {', '.join(of)}")
    for kind in kinds:
        value = entry[kind]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f".{kind}: {value!r} is not a number")
        if kind in LATENCIES:
            if not 0 < value <= LATENCIES[kind]:
                raise ConfigError(
                    f".{kind}: {value!r} is not above 0 and at most {LATENCIES[kind]}, where the histogram "
                    "ends"
                )
        elif not 0 < value < 1:
            raise ConfigError(
                f".{kind}: {value!r} is not a share above 0 and below 1"
                + (f"; did you mean {value / 100:g}?" if 1 < value < 100 else "")
            )
        yield Objective(model, kind, float(value), window_days)
