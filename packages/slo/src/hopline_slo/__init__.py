"""Service-level objectives, error budgets, burn rates and costs, from the metrics of a server."""

__version__ = "0.1.0"
