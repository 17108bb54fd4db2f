"""Notices a signal that asks the job to stop. The handler sets a flag and no more; who had one before still gets his."""

from __future__ import annotations

import signal
import threading

from mldebug_training.common.interrupted import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


class StopSignal:
    """One signal of this process. `name` is "" where it is not listened to, and `trouble` says why."""

    def __init__(self, name: str | None) -> None:
        self.came = False
        self.name = ""
        self.trouble = ""
        self._before: object = None
        if name:
            self._listen(name if name.startswith("SIG") else f"SIG{name}")

    def _listen(self, name: str) -> None:
        number = getattr(signal, name, signal.SIG_DFL)
        if number not in signal.Signals:
            raise ValueError(f"there is no signal {name!r}: USR1, USR2, or None")
        if threading.current_thread() is not threading.main_thread():
            self.trouble = f"{name} is not listened to: make the switches in the main thread"
            return
        self._before = signal.getsignal(number)
        if self._before is None or (self._before == signal.SIG_DFL and caught(number)):
            self.trouble = f"{name} is not listened to: C code handles it"
            return
        signal.signal(number, self._note)
        self.name = name

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        if callable(self._before):
            self._before(number, frame)


def caught(number: int) -> bool:
    """Does this process catch the signal, whoever installed the handler (faulthandler does it past Python)?"""
    try:
        with open("/proc/self/status", "rb") as file:
            mask = next(line for line in file if line.startswith(b"SigCgt:"))
        return bool(int(mask.split()[1], 16) >> (number - 1) & 1)
    except (OSError, StopIteration, ValueError) as error:
        pass_on(error)
        return False
