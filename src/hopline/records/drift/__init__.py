"""Drift: compares requests, answers and neighbourhoods with those that the model was built for.

Read `monitor.py` first: the recorder of a server. `version.py` has the state of one model version.
"""
