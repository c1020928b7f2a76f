"""The process that is copied for each model."""

import importlib

from hopline.isolated import fork_server


def test_every_module_that_is_imported_beforehand_exists():
    """A name in a string does not move with its module; the process would end at each start."""
    for name in fork_server._IMPORTED:
        importlib.import_module(name)
