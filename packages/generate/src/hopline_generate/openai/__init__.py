"""OpenAI's HTTP API for generative models: chat completions, completions, models.

Follows the reference of OpenAI's API as its own Python client reads it. `bodies.py` is what requests hold,
`answers.py` what answers hold, `waiting.py` a request under way, `routes.py` the handlers.
"""
