"""Snapshots that are published at addresses: publish.py writes them, command.py is `hopline snapshot`."""
