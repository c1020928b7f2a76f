"""Settings of a server: their declarations and how values are read."""
