"""The moments at which a trace begins or ends: `step:118`, `signal:USR2`, or the name of a function that is called.

A signal is used only where the job does not use it, and its handler stays after the trace: the default action would end the process
if the signal came later. Python runs handlers in the main thread, once it is back from C code.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]

from mldebug_training.common.interrupted import pass_on
from mldebug_training.common.signals import taken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SIGNALS = {"USR1": _signal.SIGUSR1, "USR2": _signal.SIGUSR2}
_calls: dict[int, Callable[[], None]] = {}  # what each signal does now


def step_of(word: str) -> int | None:
    """The number in `step:118`; None for a word that does not begin with `step:`. Raises ValueError where no number follows."""
    kind, colon, number = word.partition(":")
    if kind != "step" or not colon:
        return None
    if not (number.isascii() and number.isdigit()):
        raise ValueError(f"{word!r} is no step; write step:118")
    return int(number)


def signal_of(word: str) -> int | None:
    """The signal number of `signal:USR1` or `signal:USR2`; None for a word that does not begin with `signal:`. Raises
    ValueError for other signals.
    """
    kind, colon, name = word.partition(":")
    if kind != "signal" or not colon:
        return None
    if name not in SIGNALS:
        raise ValueError(f"{word!r} is not for this; write signal:USR1 or signal:USR2")
    return int(SIGNALS[name])


def on_signal(number: int, call: Callable[[], None]) -> str:
    """Have `call()` called when this signal arrives. Returns "", or a sentence on why that is impossible."""
    if number not in _calls and taken(number):
        return f"the job uses signal {number} itself"
    try:
        _signal.signal(number, _arrived)
    except ValueError as error:
        pass_on(error)
        return "only the main thread can wait for a signal"
    _calls[number] = call
    return ""


def _arrived(number: int, _: Any) -> None:
    _calls[number]()
