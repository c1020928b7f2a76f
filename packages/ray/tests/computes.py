"""In place of `ray_task.compute`, for processes of Ray: they import this module, and no torch."""

import dataclasses
import os
import signal
import time
from pathlib import Path

from hopline_ray import task as ray_task

COMPUTE = ray_task.compute


def seen(order):
    """Raylets whose processes have done a task of a run."""
    return {int(path.name.split("-")[1]) for path in order.work.out.parent.glob("by-*")}


def compute_when_both_work(order, spans):
    """In place of `ray_task.compute`: nobody begins before both nodes do; says which node it was."""
    (order.work.out.parent / f"by-{os.getppid()}").touch()
    end = time.monotonic() + 60
    while len(seen(order)) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    return COMPUTE(order, spans)


def compute_elsewhere(order, spans):
    """As on a machine where the model is not mounted."""
    work = dataclasses.replace(order.work, model_folder=Path("/elsewhere"))
    return COMPUTE(dataclasses.replace(order, work=work, number="elsewhere"), spans)


def compute_and_die(order, spans):
    os.kill(os.getpid(), signal.SIGKILL)
