"""A process beside the workers that brings feature rows into their shared memory."""
