"""Checks the contents of stored arrays that compiled code indexes by, in one pass.

Hashes prove that a graph is as it was written, not that its numbers lie inside its arrays: a neighbour
outside the graph would make kernels read other memory. Checked are bounds of lists, neighbours and their
order, packed blocks, running sums of weights, id tables, and what graph.json says of them. 10 M edges of
1 M nodes take 70 ms (log/).

A large graph is noted once it was checked, in the user's cache folder, and not read again while its files
are the same ones and the machine has not restarted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hopline.files import boot_id, locked, write_atomically
from hopline.graph import codec_kernels as packed
from hopline.graph.columns import read_only
from hopline.graph.edge_data import id_at
from hopline.graph.extent import bounds
from hopline.graph.parts import Adjacency
from hopline.kernels.jit import njit
from hopline.types import AnyArray

#: Reading less than this takes less time than a note saves.
_NOTED_BYTES = 16 << 20
#: Seconds for which a found error is believed: the file may be right again, and look the same.
_ERROR_S = 60.0
#: Ids that are decoded in one call.
_TEXTS = 1 << 16
#: Relative error that a stored running sum of weights may have: of float64, over 10**7 additions.
_SUM_ERROR = 1e-9
_NO_TIMES = read_only(np.empty(0, np.int64))

#: Faults of an edge, as the kernel reports them.
_OUTSIDE, _TIME_ORDER, _ORDER, _WEIGHT, _SUM = 1, 2, 3, 4, 5


def wrong_lists(adjacency: Adjacency, num_destinations: int, num_edges: int) -> str:
    """The error in the bounds of the lists of an edge type; "" for none."""
    wrong, longest = _scan_lists(_read(adjacency.indptr), num_destinations, num_edges)
    if wrong >= 0:
        return f"indptr: the list of destination {wrong} does not begin where the one before it ends"
    if adjacency.max_degree != longest:
        return f"max_degree is {adjacency.max_degree}, and the longest list has {longest} edges"
    return ""


def wrong_edges(adjacency: Adjacency, num_destinations: int, num_sources: int) -> str:
    """The error in the edges of one type, whose lists are right; "" for none."""
    indices, weight, sums = adjacency.indices, adjacency.weight, adjacency.cumweight
    plain = weight is not None and not hasattr(weight, "codes")
    if weight is not None and not plain:
        wanted = np.empty(len(weight.sums), np.int64)  # type: ignore[attr-defined]
        packed.code_sums(weight.codes, wanted)  # type: ignore[attr-defined]
        if (wanted != weight.sums).any():  # type: ignore[attr-defined]
            return "weight_sums are not the sums of weight_codes"
    time = _NO_TIMES if adjacency.time is None else adjacency.time
    last = np.full(num_sources if len(time) else 0, -1, np.int32)
    fault, edge, loops, repeated, low, high = _scan_edges(
        _read(adjacency.indptr),
        _read(indices),
        _read(time),
        num_destinations,
        num_sources,
        adjacency.src == adjacency.dst,
        last,
    )
    if fault == _OUTSIDE:
        return f"indices: the source of edge {edge} is {indices[edge]}, not one of {num_sources} nodes"
    if fault:
        what = "time" if fault == _TIME_ORDER else "source"
        return f"indices: edge {edge} is not behind the edge before it in its list, by {what}"
    if plain:
        fault, edge = _scan_weights(
            _read(adjacency.indptr), _read(weight), _read(sums), num_destinations, adjacency.signed_weight
        )
        if fault == _WEIGHT:
            return f"weight: that of edge {edge} is {weight[edge]}"  # type: ignore[index]
        if fault:
            return f"cumweight: the sum at edge {edge} is not that of the weights of its list"
    said = adjacency.has_self_loops, adjacency.has_repeated_edges
    if said[0] != loops:
        return f"has_self_loops is {said[0]}, and there are {'some' if loops else 'none'}"
    if said[1] is not None and said[1] != repeated:
        return f"has_repeated_edges is {said[1]}, and there are {'some' if repeated else 'none'}"
    if adjacency.stored_time_range is not None and adjacency.stored_time_range != (low, high):
        return f"time_range is {adjacency.stored_time_range}, and the times are {low} to {high}"
    return ""


def wrong_ids(arrays: Mapping[str, AnyArray], num_nodes: int) -> str:
    """The error in the arrays of `IdIndex.arrays`; "" for none. Empty for row numbers."""
    removed = arrays.get("removed", _NO_TIMES)
    if len(removed):
        if removed[0] < 0 or removed[-1] >= num_nodes or (np.diff(removed) <= 0).any():
            return f"removed does not name rows of {num_nodes} in ascending order"
        num_nodes -= len(removed)
    if "slots" not in arrays:
        return ""
    slots = arrays["slots"]
    if len(slots) & (len(slots) - 1) or len(slots) <= num_nodes:
        return f"slots has {len(slots)} places for {num_nodes} ids, not a power of two above that"
    if _first_wrong_slot(slots, num_nodes) >= 0:
        return f"slots does not name each of {num_nodes} rows once"
    if "offsets" in arrays:
        wrong, _ = _scan_lists(arrays["offsets"], num_nodes, len(arrays["blob"]))
        if wrong >= 0:
            return f"offsets: id {wrong} does not begin where the one before it ends"
        return _wrong_text(arrays["blob"], arrays["offsets"])
    return ""


def _wrong_text(blob: AnyArray, offsets: AnyArray) -> str:
    """The error in UTF-8 strings; "" for none."""
    if not len(blob) or blob.max() < 128:
        return ""
    begins = offsets[:-1][offsets[:-1] < len(blob)]
    if ((blob[begins] & 0xC0) == 0x80).any():
        return "blob: an id begins within a character"
    try:
        for row in range(0, len(offsets) - 1, _TEXTS):
            last = min(row + _TEXTS, len(offsets) - 1)
            str(blob[offsets[row] : offsets[last]].data, "utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        return f"blob: {error}"
    return ""


class CheckNote:
    """A note of what a check of files found on this machine since it started.

    Args:
        paths: the files, which exist.
        text: what else the check depends on.
        shared: folder for the note where the user has no cache folder; None for none.
    """

    def __init__(self, paths: Iterable[Path], text: bytes, shared: Path | None = None) -> None:
        found = [os.stat(path) for path in paths]
        named = hashlib.blake2b(text, digest_size=16)
        for status in found:
            each = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            named.update(repr(each).encode())
        self._name, boot = named.hexdigest(), boot_id()
        # A user of a container may have no home: the path stays as it is then.
        cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
        self._folders = [cache / "hopline" / "checked" / boot] if boot and cache.is_absolute() else []
        self._folders += [] if shared is None else [shared]
        if sum(status.st_size for status in found) < _NOTED_BYTES:
            self._folders = []

    @contextlib.contextmanager
    def alone(self) -> Iterator[CheckNote]:
        """Hold the note's lock: one process checks, and the others find its note."""
        with contextlib.ExitStack() as stack:
            for folder in self._folders:
                with contextlib.suppress(OSError):
                    _make(folder)
                    stack.enter_context(locked(folder / f"{self._name}.lock"))
                    break
            yield self

    def read(self) -> str | None:
        """The error that was found, for a minute; "" for none; None where the files are to be checked."""
        for folder in self._folders:
            with contextlib.suppress(OSError):
                path = folder / self._name
                error = path.read_text()
                if not error or time.time() - path.stat().st_mtime < _ERROR_S:
                    return error
        return None

    def write(self, error: str = "") -> None:
        """Note what was found. Where no folder can be written, the files are checked each time."""
        for folder in self._folders:
            with contextlib.suppress(OSError):
                _make(folder)
                write_atomically(folder / self._name, error.encode(), durable=False)
                return


def _make(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, mode=0o700)
        for earlier in folder.parent.iterdir():  # before a restart
            if folder.name == boot_id() and earlier != folder:
                shutil.rmtree(earlier, ignore_errors=True)


def _read(array: Any) -> Any:
    """The form that kernels read; see `sampling.keyed.frozen`."""
    return array.kernel if hasattr(array, "kernel") else array


@njit(nogil=True, cache=True)
def _scan_lists(indptr: Any, num_lists: Any, num_edges: Any) -> Any:
    """The first list that does not follow the one before it (-1 for none), and the longest length."""
    end, longest = np.int64(0), np.int64(0)
    for v in range(num_lists):
        start, stop = bounds(indptr, v)
        if start != end or stop < start or stop > num_edges:
            return np.int64(v), longest
        longest = max(longest, stop - start)
        end = stop
    return (np.int64(-1) if end == num_edges else np.int64(num_lists)), longest


@njit(nogil=True, cache=True)
def _scan_edges(
    indptr: Any, ids: Any, time: Any, num_lists: Any, num_sources: Any, same_type: Any, last: Any
) -> Any:
    """(fault, its edge, self-loops, repeated edges, first time, last time).

    `last` int32 [num_sources] of -1, if there are times: the last list that had a source.
    """
    loops, repeated = False, False
    low, high = np.int64(0), np.int64(0)
    timed = time.shape[0] > 0
    if timed:
        low = high = time[0]
    for v in range(num_lists):
        start, stop = bounds(indptr, v)
        before, then = np.int64(-1), np.int64(0)
        for edge in range(start, stop):
            source = np.int64(id_at(ids, edge))
            if source < 0 or source >= num_sources:
                return _OUTSIDE, np.int64(edge), loops, repeated, low, high
            loops |= same_type and source == v
            if timed:
                now = time[edge]
                if edge > start and now < then:
                    return _TIME_ORDER, np.int64(edge), loops, repeated, low, high
                if edge == start or now > then:
                    before = np.int64(-1)
                then = now
                repeated |= last[source] == v
                last[source] = v
            if source < before:
                return _ORDER, np.int64(edge), loops, repeated, low, high
            repeated |= source == before
            before = source
        if timed and stop > start:
            low, high = min(low, time[start]), max(high, time[stop - 1])
    return 0, np.int64(-1), loops, repeated, low, high


@njit(nogil=True, cache=True)
def _scan_weights(indptr: Any, weight: Any, sums: Any, num_lists: Any, signed: Any) -> Any:
    """(fault, its edge): weights that are not finite or negative, running sums that are not theirs."""
    for v in range(num_lists):
        start, stop = bounds(indptr, v)
        total, size = np.float64(0), np.float64(0)
        for edge in range(start, stop):
            w = np.float64(weight[edge])
            if not np.isfinite(w) or (w < 0 and not signed):
                return _WEIGHT, np.int64(edge)
            total += w
            size += abs(w)
            if not abs(sums[edge] - total) <= _SUM_ERROR * size:
                return _SUM, np.int64(edge)
    return 0, np.int64(-1)


@njit(nogil=True, cache=True)
def _first_wrong_slot(slots: Any, num_rows: Any) -> Any:
    """The first slot that names no row, or one more than there are rows; -1 if all are right."""
    seen = np.zeros(num_rows, np.bool_)
    for at in range(slots.shape[0]):
        row = slots[at]
        if row == -1:
            continue
        if row < 0 or row >= num_rows or seen[row]:
            return np.int64(at)
        seen[row] = True
    return np.int64(-1) if seen.all() else np.int64(slots.shape[0])
