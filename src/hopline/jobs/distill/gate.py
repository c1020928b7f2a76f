"""Whether a student is good enough to be deployed."""

from __future__ import annotations

#: A student may lose this share of what its teacher has.
TOLERANCE = 0.02


def judge(agreement: float, teacher: float | None, student: float | None) -> tuple[bool, str]:
    """Whether a student is within 2 % of its teacher.

    Where classes are known, its accuracy must be at least 0.98 of the teacher's; it may well be better, and
    then how often they agree does not matter. Where they are not, it must choose as its teacher does on at
    least 98 % of the nodes.

    Args:
        agreement: share of held-out nodes on which both choose the same.
        teacher, student: accuracy on held-out nodes; None where no class is known.

    Returns: the verdict, and the reason in words.
    """
    if teacher is not None and student is not None:
        least = (1 - TOLERANCE) * teacher
        shown = f"accuracy {student:.2%}, its teacher's {teacher:.2%}: at least {least:.2%} is needed"
        return student >= least, shown
    least = 1 - TOLERANCE
    return (
        agreement >= least,
        f"it chooses as its teacher on {agreement:.2%}: at least {least:.0%} is needed",
    )
