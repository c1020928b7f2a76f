"""Finds the layers that may be narrowed: each is tried alone, then all together, without the worst."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hopline.errors import PackagingError, ParityError
from hopline_compress.quantize.forms import Form, Forms
from hopline_compress.quantize.judge import Figures, Judge
from hopline_compress.quantize.operators import LEAST_WEIGHTS, Layer
from hopline_compress.quantize.report import LayerReport

#: A slower form must halve the distance from the original: the extra product of `equalised` takes a fifth
#: of the time of a 1,534 x 256 layer.
_CLOSER = 0.5


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of narrowing one layer, with all others unchanged."""

    layer: Layer
    form: Form
    figures: Figures


@dataclass(slots=True)
class Search:
    """Chooses the layers to narrow, and the form of each.

    Args:
        forms, judge: of the original.
        to: the forms to choose from for each layer, the fastest first.
        max_drop: points that the model may lose, over all nodes and in each bucket.
        work: a folder for forms that are tried.
        advance: called with (layers tried, layers in all).
    """

    forms: Forms
    judge: Judge
    to: tuple[Form, ...]
    max_drop: float
    work: Path
    advance: Callable[[int, int], None]
    #: layer -> why it stays unchanged
    kept: dict[str, str] = field(default_factory=dict)
    trials: dict[str, Trial] = field(default_factory=dict)

    def run(self, excluded: dict[str, str]) -> tuple[dict[str, Form], Figures]:
        """The layers to narrow, and the cost.

        Args:
            excluded: layer -> why it is not tried.

        Raises:
            PackagingError: no layer can be narrowed.
            ParityError: no choice of layers stays within `max_drop`; the message names the cost of each,
                and where.
        """
        self.kept = dict(excluded)
        open_layers = [layer for layer in self.forms.layers if self._worth(layer)]
        if not open_layers:
            raise PackagingError(f"no layer can be quantised: {self._reasons()}")
        for number, layer in enumerate(open_layers):
            trial = self._try(layer)
            self.advance(number + 1, len(open_layers))
            if trial is None:
                continue
            self.trials[layer.name] = trial
            if trial.figures.drop > self.max_drop:
                worst = trial.figures.worst
                self.kept[layer.name] = f"alone costs {worst.drop:.2f} points ({worst.name})"
        chosen = {name: trial.form for name, trial in self.trials.items() if name not in self.kept}
        while chosen:
            figures = self._figures(chosen)
            if figures.drop <= self.max_drop:
                return chosen, figures
            name = max(
                chosen, key=lambda n: (self.trials[n].figures.drop, self.trials[n].figures.difference)
            )
            del chosen[name]
            worst = figures.worst
            self.kept[name] = f"with the others costs {worst.drop:.2f} points ({worst.name})"
        raise ParityError(
            f"no layer can be quantised within {self.max_drop:g} points, and nothing was written: "
            f"{self._reasons()}; allow more with --max-drop, or quantise --to bfloat16"
        )

    def add(self, chosen: dict[str, Form], form: Form, figures: Figures) -> tuple[dict[str, Form], Figures]:
        """Also narrow rejected layers in another form, if the model stays within `max_drop`."""
        more = {name: form for name in self.kept if name in self.trials}
        if not more:
            return chosen, figures
        found = self._figures(chosen | more)
        return (chosen | more, found) if found.drop <= self.max_drop else (chosen, figures)

    def reports(self, chosen: dict[str, Form]) -> tuple[LayerReport, ...]:
        """The result for each layer."""
        found = []
        for layer in self.forms.layers:
            form = chosen.get(layer.name)
            trial = self.trials.get(layer.name)
            is_int8 = form in ("range", "equalised")
            found.append(
                LayerReport(
                    layer.name,
                    layer.shape,
                    "int8" if is_int8 else form or "float32",
                    form or "" if is_int8 else "",
                    None if trial is None else trial.figures.drop,
                    self.kept.get(layer.name, ""),
                )
            )
        return tuple(found)

    def _worth(self, layer: Layer) -> bool:
        if layer.name in self.kept:
            return False
        size = layer.shape[0] * layer.shape[1]
        if size < LEAST_WEIGHTS:
            self.kept[layer.name] = f"{size} weights: too few to save anything"
        elif not self.forms.calls.get(layer.file):
            self.kept[layer.name] = "no calibration node reaches it"
        return layer.name not in self.kept

    def _try(self, layer: Layer) -> Trial | None:
        best: Trial | None = None
        for form in self.to:
            try:
                trial = Trial(layer, form, self._figures({layer.name: form}))
            except PackagingError as error:
                self.kept[layer.name] = str(error)
                continue
            if best is None or self._is_better(trial.figures, best.figures):
                best = trial
        return best

    def _is_better(self, slower: Figures, faster: Figures) -> bool:
        if faster.drop > self.max_drop:
            return slower.drop < faster.drop
        return slower.drop <= self.max_drop and slower.difference < _CLOSER * faster.difference

    def _figures(self, chosen: dict[str, Form]) -> Figures:
        folder = self.work / "tried"
        try:
            return self.judge.compare(self.forms.write(folder, chosen), self.forms.spec)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _reasons(self) -> str:
        if not self.forms.layers:
            return "the model has no products with constant weights"
        return "; ".join(f"{name}: {why}" for name, why in self.kept.items())
