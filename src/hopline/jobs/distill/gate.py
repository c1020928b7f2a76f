"""Decides if a student is good enough to be deployed."""

from __future__ import annotations

#: A student may lose this share of its teacher's accuracy.
TOLERANCE = 0.02


def judge(agreement: float, teacher: float | None, student: float | None) -> tuple[bool, str]:
    """Verdict on a student: good if it is within 2 % of its teacher.

    If classes are known, its accuracy must be at least 0.98 of the teacher's. It may well be better; then
    their agreement does not matter. If classes are unknown, it must agree with its teacher on at least 98 %
    of the nodes.

    Args:
        agreement: share of held-out nodes on which both choose the same class.
        teacher, student: accuracy on held-out nodes; None if no class is known.

    Returns: the verdict, and the reason in words.
    """
    if teacher is not None and student is not None:
        least = (1 - TOLERANCE) * teacher
        shown = f"accuracy {student:.2%}, its teacher's {teacher:.2%}; required: at least {least:.2%}"
        return student >= least, shown
    least = 1 - TOLERANCE
    return (
        agreement >= least,
        f"it agrees with its teacher on {agreement:.2%}; required: at least {least:.0%}",
    )
