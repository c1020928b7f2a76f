from tests.rollout.conftest import root, source

__all__ = ["root", "source"]
