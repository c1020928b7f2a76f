"""Feature rows outside the graph: stores, tiers, caches."""
