"""Which values of a job are numbers that can be read at once: int, float, and scalars of NumPy, which is not imported for it.

No other value's `__float__` is called: that of a tensor on a GPU waits for the GPU.
"""

from __future__ import annotations

from mldebug_training.common.interrupted import pass_on
from mldebug_training.hook.record import possible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NUMPY = ("floating", "integer")


def of_step(value: Any) -> int:
    """The value as a step number. Raises ValueError or OverflowError where it cannot be one."""
    if not is_number(value):
        raise ValueError("a step is a number")
    return possible(int(value))


def of_scalars(values: dict[str, Any]) -> dict[str, float]:
    """The values that are numbers, as floats; numbers too large for a float are left out."""
    found = {}
    for name, value in values.items():
        try:
            if is_number(value):
                found[name] = float(value)
        except Exception as error:  # 10**400, or a class of the job
            pass_on(error)
    return found


def is_number(value: object) -> bool:
    """Whether the value is a number that the hook can report: of Python or numpy."""
    return isinstance(value, (int, float)) or any(
        kind.__module__ == "numpy" and kind.__name__ in _NUMPY for kind in type(value).__mro__
    )
