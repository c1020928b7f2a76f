import pytest

from tests.graph_store.memory_store import MemoryStore
from tests.graph_store.suite import GraphStoreSuite


class TestMemory(GraphStoreSuite):
    @pytest.fixture(params=["sage", "hetero"])
    def graph(self, request, cases):
        return cases[request.param].graph

    @pytest.fixture
    async def store(self, graph):
        store = MemoryStore(graph)
        await store.open()
        return store
