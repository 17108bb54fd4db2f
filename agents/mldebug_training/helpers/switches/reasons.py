"""Why one rank wants to save or to stop: what it has seen, heard and been told. What all do about it `switches` agrees on."""

from __future__ import annotations

from mldebug_training.common.interrupted import pass_on
from mldebug_training.helpers.switches.files import KILL, SAVE
from mldebug_training.helpers.switches.stop_signal import StopSignal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        signal: str | None,
    ) -> None:
        self._folder, self._limit, self._why = folder, limit, why
        self.asked = StopSignal(signal)
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
