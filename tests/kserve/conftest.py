from tests.transports.conftest import server

__all__ = ["server"]
