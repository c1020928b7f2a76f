"""Following a stream of events: what brokers deliver becomes versions of a live graph."""
