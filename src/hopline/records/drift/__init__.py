"""Drift: are today's requests, answers and neighbourhoods still those that the model was made for?

`monitor.py` first: the recorder that servers have. `version.py` is what it keeps of one model version.
"""
