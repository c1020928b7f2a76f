"""Generative models: text that an existing engine produces, token by token.

    worker 0 ─┐  Unix socket                 ┌─ main thread: tokenise, detokenise, stop strings
    worker 1 ─┼──────────────► engine process┤
    worker 2 ─┘                              └─ loop: admit, step, admit, step, …

Read `request.py` (what a caller may ask for), `engine.py` (what an engine does), `schedule.py` (who runs)
and `process.py` first. `link.py` is a worker's side. `version.py` makes it a version,
`kind.py` and `openai/operations.py` are what Hopline finds. `openai/` has the HTTP API.
"""

__version__ = "0.1.0"
