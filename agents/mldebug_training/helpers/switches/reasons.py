"""The reasons of one rank to write a checkpoint or stop: a switch, a signal, its time limit, or the job's own reason."""

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

REMEMBERED = 64  # save switches that were acted upon
NOTHING, SAVE_SWITCH, WORD, TIME, SIGNAL, KILL_SWITCH, OFF = range(7)  # the more urgent the higher
WORDS = {
    SAVE_SWITCH: "the save switch is set",
    WORD: "it asked to stop",
    TIME: "its time ends",
    SIGNAL: "a signal came",
    KILL_SWITCH: "the kill switch is set",
}


class StopReasons:
    """The reasons of this rank to write a checkpoint or stop. The arguments are those of `Switches`."""

    def __init__(
        self,
        folder: str,
        limit: TimeLimit | None,
        why: Callable[[], str | None] | None,
        signal_name: str | None,
    ) -> None:
        self._folder, self._limit, self._why = folder, limit, why
        self.stop_signal = StopSignal(signal_name)
        self._trouble = ""  # of asking the job
        self._done: list[int] = []  # save switches that were acted upon

    def wanted(self, reading: SwitchReading | None) -> tuple[int, str]:
        """The most urgent reason of this rank to write a checkpoint or to stop (a constant from NOTHING to KILL_SWITCH), and the same as
        a sentence. `reading`: what the switch files (by which a person asks a job to write a checkpoint or to stop: `mldebug switch`) held when they
        were last read; None where they were not read.
        """
        if reading and reading.kill:
            by = f" (by {reading.by})" if reading.by else ""
            return KILL_SWITCH, f"the kill switch {self._folder}/{KILL} is set{by}"
        if self.stop_signal.came:
            return SIGNAL, f"{self.stop_signal.name} came"
        late = self._limit.reason() if self._limit else None
        if late:
            return TIME, late
        reason = self._job_reason()
        if reason:
            return WORD, reason
        if reading and reading.save and reading.save not in self._done:
            return SAVE_SWITCH, f"the save switch {self._folder}/{SAVE} is set"
        return NOTHING, ""

    def troubles(self, reading: SwitchReading | None) -> Iterator[str]:
        """Sentences on why some reasons cannot be checked; "" for each that can."""
        yield reading.trouble if reading else ""
        yield self.stop_signal.trouble
        yield self._limit.trouble if self._limit else ""
        yield self._trouble

    def on_save_done(self, token: int) -> None:
        """Ignore the save switch with this token from now on, because it was obeyed."""
        self._done = [*self._done[-REMEMBERED:], token]

    def _job_reason(self) -> str:
        """Return the job's own reason; "" where it has none or its function fails."""
        try:
            return str((self._why() if self._why else None) or "")[:300]
        except Exception as error:
            pass_on(error)
            self._trouble = f"the reason to stop cannot be asked: {type(error).__name__}: {error}"
            return ""


class StopSignal:
    """Notices one signal that asks this process to stop. Its handler sets a flag, and also calls the handler that was there
    before.

    `name`: the signal, "" where it is not handled, and `trouble` says why. Raises ValueError for an unknown signal.
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
    """Whether this process has a handler for the signal, of Python or of C code (as faulthandler's)."""
    try:
        with open("/proc/self/status", "rb") as file:
            mask = next(line for line in file if line.startswith(b"SigCgt:"))
        return bool(int(mask.split()[1], 16) >> (number - 1) & 1)
    except (OSError, StopIteration, ValueError) as error:
        pass_on(error)
        return False
