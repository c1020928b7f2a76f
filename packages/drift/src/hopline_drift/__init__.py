"""Comparisons with the past: drift, its references and reports, and replays of a prediction log.

Read `monitor.py` first: the recorder of a server. `version.py` has the state of one model version.
"""

__version__ = "0.1.0"
