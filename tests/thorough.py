"""What the check of a change leaves to the check of a release, `scripts/test --all`.

- `@pytest.mark.release` leaves a test out.
- `@pytest.mark.sample(count)` runs some of a test's parametrisations: with each value of each parameter, as
  far as `count` goes.
- `thorough(few, most)` is a number of examples, events, nodes or kills.

Tests whose file or folder is named all run, with few examples unless `--all` is given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

#: Multiples of it modulo 1 are spread evenly, however many there are.
_GOLDEN = 0.6180339887

#: True with `--all`; set before tests are imported.
_is_all = False


def thorough(few: int, most: int) -> int:
    """`most` in the check of a release, else `few`."""
    return most if _is_all else few


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also what is left to the check of a release")


def pytest_configure(config: pytest.Config) -> None:
    global _is_all
    _is_all = config.getoption("--all")
    # What an example takes is the machine's affair: no test is a timed one. The check of a change has
    # the same examples each time; that of a release looks for others.
    settings.register_profile(
        "hopline", max_examples=thorough(25, 100), deadline=None, derandomize=not _is_all,
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    settings.load_profile("hopline")
    config.addinivalue_line("markers", "release: only with --all, or where its folder or file is named")
    config.addinivalue_line("markers", "sample(count): so many parametrisations, else as `release`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests of a release to those who want all, or name their folder or file."""
    named = {(config.rootpath / argument.split("::")[0]).resolve() for argument in config.args}
    if _is_all or not named & {config.rootpath, config.rootpath / "tests"}:
        return
    left_out = [item for item in items if item.get_closest_marker("release")]
    groups: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        # a class may be marked that has tests without parameters
        if item.get_closest_marker("sample") and hasattr(item, "callspec") and item not in left_out:
            groups[item.nodeid.partition("[")[0]].append(item)
    for group in groups.values():
        (count,) = group[0].get_closest_marker("sample").args
        kept = sample([dict(item.callspec.indices) for item in group], count)
        left_out += [item for place, item in enumerate(group) if place not in kept]
    if left_out:
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
        config.hook.pytest_deselected(items=left_out)


def sample(cases: Sequence[dict[str, int]], count: int) -> set[int]:
    """Places of `count` cases, the same in each run.

    Each has as many values as possible that no earlier one has. Among equals they are spread over the list.

    Args:
        cases: parameter -> number of its value.
    """
    order = sorted(range(len(cases)), key=lambda place: place * _GOLDEN % 1)
    kept: set[int] = set()
    seen: set[tuple[str, int]] = set()
    while order and len(kept) < count:
        best = max(order, key=lambda place: len(cases[place].items() - seen))
        order.remove(best)
        kept.add(best)
        seen.update(cases[best].items())
    return kept
