"""`hopline`, in a process in which torch cannot be imported.

    python -m examples.torch_free serve --graph … --repository …

Represents a production image without torch. It proves on stdout that the block works before it serves.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

#: All that packaging needs and serving must not.
BLOCKED = ("torch", "torch_geometric", "onnx", "onnxscript", "sklearn", "xgboost", "pandas")
PROOF = f"cannot be imported here: {', '.join(BLOCKED)}"


class Blocker(MetaPathFinder):
    """Refuses the blocked packages and everything below them; asked before all other finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{fullname} is blocked in this process", name=fullname)
        return None


def block() -> None:
    """Install the block and try it.

    Raises: RuntimeError: a blocked package can be imported all the same.
    """
    sys.meta_path.insert(0, Blocker())
    for name in BLOCKED:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        raise RuntimeError(f"{name} could be imported in spite of the block")


if __name__ == "__main__":
    block()
    print(PROOF, flush=True)
    from hopline.cli import main

    main()
