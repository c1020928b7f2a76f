"""Comparison of a store's rows with those that the model was trained on, at start and repeatedly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence

from hopline.errors import (
    FeatureGroupNotFound,
    FeatureSchemaMismatch,
    FeatureStoreError,
    FeatureStoreUnavailable,
)
from hopline.features.base import FeatureGroup, FeatureStore
from hopline.features.stamped import stamped_group

log = logging.getLogger(__name__)

_DESCRIBE_TIMEOUT_S = 5.0
#: Names that are listed; the others are counted.
_MAX_NAMES = 5


def differences(expected: FeatureGroup, stored: FeatureGroup) -> list[str]:
    """Return the differences of two groups, one sentence each; empty if their rows are compatible.

    Names are compared only if both sides have them: a store may not store names.
    """
    found = []
    for what in ("dim", "dtype"):
        ours, theirs = getattr(expected, what), getattr(stored, what)
        if ours != theirs:
            found.append(f"{what} is {theirs} in the store, but {ours} is expected")
    ours, theirs = expected.feature_names, stored.feature_names
    if ours and theirs and ours != theirs:
        lacking = [name for name in ours if name not in set(theirs)]
        surplus = [name for name in theirs if name not in set(ours)]
        if lacking:
            found.append(f"the store lacks {_listed(lacking)}")
        if surplus:
            found.append(f"the store has {_listed(surplus)}, which is not expected")
        if not lacking and not surplus:
            at = next(
                (at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), 0
            )
            found.append(
                f"the order differs: number {at} is {theirs[at]!r} in the store, expected {ours[at]!r}"
            )
    return found


def column_differences(
    expected: FeatureGroup, stored: FeatureGroup, lists: Mapping[str, Sequence[str]]
) -> list[str]:
    """As `differences`, of columns. The store may have more, integers for floats, and lists.

    Args:
        lists: name -> columns, of the lists among the expected columns.
    """
    there = {
        column: expected.columns[column]
        for name, columns in lists.items()
        if stored.columns.get(name) == ("vector" if columns[0] == f"{name}_0" else "codes")
        for column in columns
    } | stored.columns
    return [
        f"the store has no column {name!r} ({kind})"
        if name not in there
        else f"column {name!r} is {there[name]} in the store, and {kind} is expected"
        for name, kind in expected.columns.items()
        if there.get(name) not in (kind, "integer" if kind == "float" else kind)
    ]


class SchemaWatch:
    """Compares the stores' schema of a group with the expected one.

    The result for a store that does not respond stays unchanged.

    Attributes:
        refusal: why the origin's rows must not be used, or "".
        l2_refusal: why L2 is skipped, or "".
    """

    def __init__(
        self, expected: FeatureGroup, origin: FeatureStore, l2: FeatureStore | None, recheck_s: float
    ) -> None:
        self._expected = expected
        self._origin = origin
        self._l2 = l2
        self._recheck_s = recheck_s
        self._task: asyncio.Task[None] | None = None
        self.refusal = ""
        self.l2_refusal = ""

    async def start(self) -> None:
        """Compare now, then repeatedly in the background.

        Raises:
            FeatureSchemaMismatch: with each difference, of the origin or of L2.
            FeatureStoreError: see the origin's `describe`. L2 may be unavailable.
        """
        self.refusal = await _compared(self._origin, self._expected)
        if self.refusal:
            raise FeatureSchemaMismatch(self.refusal)
        if self._l2 is not None:
            try:
                self.l2_refusal = await self._compare_l2(self._l2)
            except FeatureStoreError as error:
                log.warning("feature store %s (l2) did not return its schema: %s", self._l2.kind, error)
            if self.l2_refusal:
                raise FeatureSchemaMismatch(self.l2_refusal)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._repeat())

    async def check(self) -> None:
        """Compare once, and store the results."""
        # A store that does not respond, or whose group is being replaced, changes nothing.
        with contextlib.suppress(FeatureStoreError):
            refusal = await _compared(self._origin, self._expected)
            _log_change(self.refusal, refusal, self._expected.name)
            self.refusal = refusal
        if self._l2 is not None:
            with contextlib.suppress(FeatureStoreError):
                refusal = await self._compare_l2(self._l2)
                _log_change(self.l2_refusal, refusal, self._expected.name)
                self.l2_refusal = refusal

    async def close(self) -> None:
        """Stop comparing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=_DESCRIBE_TIMEOUT_S)
            self._task = None

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(self._recheck_s)
            try:
                await self.check()
            except Exception:  # the boundary: an error of a store must not end the comparisons
                log.exception("the schema of feature group %r could not be compared", self._expected.name)

    async def _compare_l2(self, l2: FeatureStore) -> str:
        copies = stamped_group(self._expected)
        try:
            return await _compared(l2, copies)
        except FeatureGroupNotFound:
            await l2.create(copies)
            return ""


async def _compared(store: FeatureStore, expected: FeatureGroup) -> str:
    """Difference between a store's rows and the expected ones; "" for none."""
    try:
        async with asyncio.timeout(_DESCRIBE_TIMEOUT_S):
            stored = await store.describe(expected.name)
    except FeatureSchemaMismatch as error:
        return str(error)
    except TimeoutError:
        raise FeatureStoreUnavailable(
            f"{store.kind}: no schema of group {expected.name!r} within {_DESCRIBE_TIMEOUT_S:g} s"
        ) from None
    found = differences(expected, stored)
    if not found:
        return ""
    return f"{store.kind}: feature group {expected.name!r}: {'; '.join(found)}"


def _log_change(before: str, now: str, group: str) -> None:
    if now and now != before:
        log.error("rows are refused: %s", now)
    elif before and not now:
        log.info("the schema of feature group %r matches again", group)


def _listed(names: list[str]) -> str:
    text = ", ".join(map(repr, names[:_MAX_NAMES]))
    return text if len(names) <= _MAX_NAMES else f"{text} and {len(names) - _MAX_NAMES} more"
