"""Tools for agents: models of a server over the Model Context Protocol."""

__version__ = "0.1.0"
