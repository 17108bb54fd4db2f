"""Why one rank wants to save or to stop: what it has seen, heard and been told. What all do about it `switches` agrees on."""

from __future__ import annotations

import signal
import threading

from mldebug_training.common.interrupted import pass_on
from mldebug_training.helpers.switches.files import KILL, SAVE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from mldebug_training.helpers.deadline import TimeLimit
    from mldebug_training.helpers.switches.files import SwitchReading

REMEMBERED = 64  # save switches that were obeyed
NOTHING, SAVE_SWITCH, WORD, TIME, SIGNAL, KILL_SWITCH, OFF = range(7)  # the more urgent the higher
WORDS = {
    SAVE_SWITCH: "the save switch is set",
    WORD: "it asked to stop",
    TIME: "its time ends",
    SIGNAL: "a signal came",
    KILL_SWITCH: "the kill switch is set",
}


class StopReasons:
    """Of this rank. The arguments are those of `Switches`."""

    def __init__(
        self,
        folder: str,
        limit: TimeLimit | None,
        why: Callable[[], str | None] | None,
        signal_name: str | None,
    ) -> None:
        self._folder, self._limit, self._why = folder, limit, why
        self.asked = StopSignal(signal_name)
        self._trouble = ""  # of asking the job
        self._done: list[int] = []  # save switches that were obeyed

    def wanted(self, seen: SwitchReading | None) -> tuple[int, str]:
        """What this rank wants, and why."""
        if seen and seen.kill:
            by = f" (by {seen.by})" if seen.by else ""
            return KILL_SWITCH, f"the kill switch {self._folder}/{KILL} is set{by}"
        if self.asked.came:
            return SIGNAL, f"{self.asked.name} came"
        late = self._limit.reason() if self._limit else None
        if late:
            return TIME, late
        told = self._told()
        if told:
            return WORD, told
        if seen and seen.save and seen.save not in self._done:
            return SAVE_SWITCH, f"the save switch {self._folder}/{SAVE} is set"
        return NOTHING, ""

    def troubles(self, seen: SwitchReading | None) -> Iterator[str]:
        """What cannot be seen, heard or asked; some are empty."""
        yield seen.trouble if seen else ""
        yield self.asked.trouble
        yield self._limit.trouble if self._limit else ""
        yield self._trouble

    def obeyed(self, token: int) -> None:
        """This save switch counts no more."""
        self._done = [*self._done[-REMEMBERED:], token]

    def _told(self) -> str:
        """The job's own reason; one that fails is none."""
        try:
            return str((self._why() if self._why else None) or "")[:300]
        except Exception as error:
            pass_on(error)
            self._trouble = f"the reason to stop cannot be asked: {type(error).__name__}: {error}"
            return ""


class StopSignal:
    """Notices one signal that asks this process to stop. The handler sets a flag; a handler that was there before runs, too.

    `name`: of the signal; "" where it is not listened to, and `trouble` says why.
    """

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
