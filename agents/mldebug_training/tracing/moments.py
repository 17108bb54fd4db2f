"""The moments at which a trace begins or ends: `step:118`, `signal:USR2`, else the name of a function that is called.

A signal is taken only where the job has given it no meaning: its default action ends the process. It is never given back, for one that
is sent after the trace would do just that. Python's handlers run in the main thread, once it is back from C code.
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
    """The number in `step:118`; None for any other word. Raises ValueError for a step that is no number."""
    kind, colon, number = word.partition(":")
    if kind != "step" or not colon:
        return None
    if not (number.isascii() and number.isdigit()):
        raise ValueError(f"{word!r} is no step; write step:118")
    return int(number)


def signal_of(word: str) -> int | None:
    """The signal in `signal:USR2`; None for any other word. Raises ValueError for an unknown signal."""
    kind, colon, name = word.partition(":")
    if kind != "signal" or not colon:
        return None
    if name not in SIGNALS:
        raise ValueError(f"{word!r} is not for this; write signal:USR1 or signal:USR2")
    return int(SIGNALS[name])


def on_signal(number: int, call: Callable[[], None]) -> str:
    """Call a function when this signal arrives. Returns why that is impossible, or ""."""
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
