import pytest

from hopline.graph_store.memory import MemoryStore
from hopline.testing.graph_stores import GraphStoreSuite


class TestMemory(GraphStoreSuite):
    @pytest.fixture(params=["sage", "hetero"])
    def graph(self, request, cases):
        return cases[request.param].graph

    @pytest.fixture
    async def store(self, graph):
        store = MemoryStore(graph)
        await store.open()
        return store
