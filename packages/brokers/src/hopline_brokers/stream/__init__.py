"""Follows a stream of events: messages of brokers become versions of a live graph."""
