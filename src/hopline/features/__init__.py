"""Feature rows that live outside the graph: stores, tiers, caches."""
