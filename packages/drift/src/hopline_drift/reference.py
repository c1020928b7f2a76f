"""References of comparisons: a sketch per quantity, of training data or of the first traffic."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hopline.errors import ArtifactError
from hopline_drift.bins import Bins, Sketch
from hopline_drift.files import read_sealed, write_sealed
from hopline_drift.observed import Kind, Observed, Quantity

FORMAT = 1
FILE = "reference.json"
#: A quantity with fewer values is left out.
MIN_VALUES = 50


class ReferenceEntry(msgspec.Struct, frozen=True):
    """One quantity of a reference."""

    kind: Kind
    name: str
    sketch: Sketch

    @property
    def quantity(self) -> Quantity:
        """The quantity of the sketch."""
        return Quantity(self.kind, self.name)


class Reference(msgspec.Struct, frozen=True):
    """The content of reference.json.

    Attributes:
        model, version: of the model; "" if the reference is for any.
        source: "traffic", or the file or graph that was read.
        made: creation, time.time().
        num_requests: number of requests, or of rows of a file or graph.
        entries: in a fixed order, which windows also use.
        is_complete: False: traffic adds missing quantities (a graph has no answers).
    """

    model: str
    version: str
    source: str
    made: float
    num_requests: int
    entries: tuple[ReferenceEntry, ...]
    is_complete: bool = True
    format: int = FORMAT

    @classmethod
    def of(
        cls,
        observed: Observed,
        source: str,
        made: float,
        *,
        model: str = "",
        version: str = "",
        base: Reference | None = None,
        is_complete: bool = True,
    ) -> Reference:
        """Create bins from observed values, and count these.

        Args:
            base: its entries remain; only missing ones are added.
        """
        entries = list(base.entries) if base is not None else []
        known = {entry.quantity for entry in entries}
        for quantity in sorted(set(observed.quantities()) - known):
            values = observed.values(quantity)
            if len(values) >= MIN_VALUES:
                bins = observed.bins(quantity)
                entries.append(ReferenceEntry(quantity.kind, quantity.name, Sketch.of(bins, values)))
        if base is not None:
            source = f"{base.source}, then {source}"
        return cls(model, version, source, made, observed.num_requests, tuple(entries), is_complete)

    def bins(self, quantity: Quantity) -> Bins | None:
        """The bins of a quantity; None if it is not in the reference."""
        return next((entry.sketch.bins for entry in self.entries if entry.quantity == quantity), None)


def write_reference(path: Path, reference: Reference) -> str:
    """Write a reference atomically; return its sha256, which windows refer to."""
    return write_sealed(path, reference, durable=True)


def read_reference(path: Path) -> tuple[Reference, str]:
    """Read a reference; return it and its sha256.

    Raises:
        FileNotFoundError: the file does not exist.
        ArtifactCorrupted: the file is damaged.
        ArtifactError: the file has a newer format.
    """
    reference, digest = read_sealed(path, Reference)
    if reference.format > FORMAT:
        raise ArtifactError(f"{path}: format {reference.format} is newer than {FORMAT}; upgrade hopline")
    return reference, digest
