"""What windows are compared with: a sketch of every quantity, of training data or of the first traffic."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hopline.errors import ArtifactError
from hopline.observe.psi import Bins, Sketch
from hopline.records.drift.files import read_sealed, write_sealed
from hopline.records.drift.observed import Kind, Observed, Quantity

FORMAT = 1
FILE = "reference.json"
#: A quantity with fewer values says nothing: it is left out.
MIN_VALUES = 50


class Entry(msgspec.Struct, frozen=True):
    """One quantity of a reference."""

    kind: Kind
    name: str
    sketch: Sketch

    @property
    def quantity(self) -> Quantity:
        """What the sketch is of."""
        return Quantity(self.kind, self.name)


class Reference(msgspec.Struct, frozen=True):
    """The content of reference.json.

    Attributes:
        model, version: whose; "" for whichever it is given to.
        source: in words: "traffic", or the file or graph that it was made from.
        made: time.time().
        num_requests: it was made of; rows, where it was made of data.
        entries: in a fixed order; windows count in the same.
        is_complete: False lets traffic add the quantities that it lacks (a graph has no answers).
    """

    model: str
    version: str
    source: str
    made: float
    num_requests: int
    entries: tuple[Entry, ...]
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
        """Make bins of what was seen, and count it.

        Args:
            base: its entries stay; only what it lacks is added.
        """
        entries = list(base.entries) if base is not None else []
        known = {entry.quantity for entry in entries}
        for quantity in sorted(set(observed.quantities()) - known):
            values = observed.values(quantity)
            if len(values) >= MIN_VALUES:
                bins = observed.bins(quantity)
                entries.append(Entry(quantity.kind, quantity.name, Sketch.of(bins, values)))
        if base is not None:
            source = f"{base.source}, then {source}"
        return cls(model, version, source, made, observed.num_requests, tuple(entries), is_complete)

    def bins(self, quantity: Quantity) -> Bins | None:
        """The bins of a quantity; None where it is not in the reference."""
        return next((entry.sketch.bins for entry in self.entries if entry.quantity == quantity), None)


def write_reference(path: Path, reference: Reference) -> str:
    """Write it, whole or not at all; returns its sha256, which windows are tied to."""
    return write_sealed(path, reference, durable=True)


def read_reference(path: Path) -> tuple[Reference, str]:
    """A reference and its sha256.

    Raises:
        FileNotFoundError: there is none.
        ArtifactCorrupted: it is damaged.
        ArtifactError: of a newer format.
    """
    reference, digest = read_sealed(path, Reference)
    if reference.format > FORMAT:
        raise ArtifactError(f"{path}: format {reference.format} is newer than {FORMAT}; upgrade hopline")
    return reference, digest
