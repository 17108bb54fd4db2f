"""Stops and checkpoints that all ranks make at the same step, whichever rank and node the request comes from.

A request is a switch (a file), a signal, the end of the job's time limit, or a reason that the job gives; it is enough that one
rank notices it. All ranks agree on it while the next step runs, and act after that step.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from mldebug_training.common.calls import LateError
from mldebug_training.common.interrupted import pass_on
from mldebug_training.helpers.rank_print import write_lines
from mldebug_training.helpers.switches import agreement
from mldebug_training.helpers.switches.agreement import RankAgreement
from mldebug_training.helpers.switches.files import KILL, SAVE, choose
from mldebug_training.helpers.switches.pace import AgreementPace, CheckpointTimer
from mldebug_training.helpers.switches.reasons import NOTHING, OFF, SAVE_SWITCH, WORDS, StopReasons
from mldebug_training.helpers.switches.watch import SwitchWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from mldebug_training.helpers.deadline import TimeLimit

REMEMBERED = 64  # sentences that were printed
_RANKS = 2**32
_FAR = (
    2**62
)  # more than any count; what is left of it is the lowest count, as the highest is agreed
PATIENCE = 600.0  # seconds that `at_start`, and whoever saves or ends, waits for the others at most


class Switches:
    """Lets all ranks stop or write a checkpoint at the same step. Make one in every rank, and call `poll` after every step,
    equally often in all.

    `folder`: the folder of the switch files; else $MLDEBUG_SWITCH_DIR, else `.mldebug-switch/JOB` in the working directory.
    `limit`: a `TimeLimit` to stop by. `reason`: called at every agreement; returns why to stop, or None. `signal`: the signal
    that asks to stop; None for none. `every`: steps between two agreements; None: at most four a second. `group`: the process
    group whose ranks agree (a rank outside has no switches); None: all ranks. `timeout`: seconds that a rank waits in a poll
    for the others; after that the switches are off. Raises ValueError for invalid arguments; no later call raises an error of
    ours.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        limit: TimeLimit | None = None,
        reason: Callable[[], str | None] | None = None,
        signal: str | None = "USR1",
        every: int | None = None,
        group: Any = None,
        timeout: float = 5.0,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        if every is not None and every < 1:
            raise ValueError(f"every={every!r}: it is a number of steps, 1 or more")
        path, ours = choose(os.fspath(folder) if folder else None, environ)
        self.folder = path
        self.reason = ""  # why to stop or save, once that was agreed
        self._reasons = StopReasons(path, limit, reason, signal)
        self._agreement = RankAgreement(group, timeout)
        self._watch = SwitchWatch(path, ours=ours)
        self._printed: set[str] = set()
        self._ended = self._off = False
        self._verdict: tuple[int, int, int] | None = (
            None  # kind, rank, token: what all ranks agreed to do
        )
        self._agreed: str | None = None  # in this poll
        self._owed: str | None = None  # that, where the poll did not come to its end
        self._polls = 0
        self._pace = AgreementPace(limit, every)
        self._clocks = agreement.CollectiveClocks()
        self._own: tuple[int, str] = (NOTHING, "")

    def at_start(self) -> str | None:
        """ "kill" if the job should end before it begins, else None. Collective: call it on all ranks after init_process_group."""
        if self._ended or self._off:
            return KILL if self._ended else None
        try:
            return self._at_start() if self._verdict is None else self._act()
        except BaseException as error:
            self._give_up(error)
            pass_on(error)
            return None

    def poll(self) -> str | None:
        """None, "save" (save and go on) or "kill" (save and end), the same on all ranks; after "kill" it stays "kill"."""
        if self._ended or self._off:
            return KILL if self._ended else self._last_word()
        try:
            return self._poll()
        except BaseException as error:
            self._owed = self._agreed
            self._give_up(error)
            pass_on(error)
            return self._last_word()

    def saving(self) -> CheckpointTimer:
        """`with switches.saving():` around the writing of a checkpoint. The longer that takes, the earlier the run stops
        before its time limit.
        """
        return CheckpointTimer(self._pace.saved)

    def close(self) -> None:
        """Stop looking at the switches. The end of the process does this too."""
        self._watch.close()

    def _at_start(self) -> str | None:
        self._watch.start()
        self._watch.first_look()
        if not self._can_agree():
            return None
        self._begin(saves=False)
        return self._finish(self._patience())

    def _last_word(self) -> str | None:
        """Return the action that all ranks take and that this rank could not return: its poll was interrupted."""
        owed, self._owed = self._owed, None
        return owed

    def _poll(self) -> str | None:
        self._agreed = None
        if self._verdict is None:
            self._polls += 1
            action = self._finish() if self._agreement.begun else None
        else:
            action = self._act()  # this poll was interrupted before
        waits = not self._off and action != KILL and self._polls >= self._pace.due
        if waits and self._can_agree():
            self._begin()
            if self._agreement.size() == 1:
                action = self._finish() or action
        return action

    def _can_agree(self) -> bool:
        size = self._agreement.size()
        if size < 0:
            self._switch_off("this rank is not in their group")
        elif size == 0:
            self._print_once(
                "the switches are off until torch.distributed is initialised: the ranks cannot agree"
            )
        return size > 0

    def _begin(self, *, saves: bool = True) -> None:
        self._watch.start()
        pace = self._pace.measure(self._polls, self._agreement.size())
        reading = self._watch.last_reading
        self._own = self._reasons.wanted(reading)
        for one in (*self._reasons.troubles(reading), self._watch.trouble):
            self._print_once(one)
        kind = self._own[0]
        if kind == SAVE_SWITCH and not saves:
            kind = NOTHING
        token = reading.save if reading and kind == SAVE_SWITCH else 0
        urgent, count = kind * _RANKS + agreement.rank(), agreement.clock()
        self._agreement.begin((urgent, token, pace, count, _FAR - count))
        self._leave_word()

    def _finish(self, timeout: float | None = None) -> str | None:
        urgent, token, pace, most, left = self._agreement.finish(timeout)
        kind, rank = divmod(urgent, _RANKS)
        if kind == OFF:
            self._switch_off(f"rank {rank} asks no more")
            return None
        apart = most - (_FAR - left)
        if kind == NOTHING and self._clocks.have_parted(most, apart):
            self._switch_off(
                f"not all ranks polled after each step: their counts of collectives are {apart} apart"
            )
            return None
        self._pace.agreed(pace)
        if kind == NOTHING:
            return None
        self._verdict = kind, rank, token
        return self._act()

    def _act(self) -> str:
        """Wait until all ranks are at this poll, then return what they agreed on. If interrupted, the next poll calls it again."""
        kind, rank, token = self._verdict or (NOTHING, 0, 0)
        self._agreement.meet(self._patience())
        mine = rank == agreement.rank()
        self.reason = f"rank {rank}: {self._own[1] if mine else WORDS[kind]}"
        if kind == SAVE_SWITCH:
            self._reasons.on_save_done(token)
        if mine:
            todo = "saves, and goes on" if kind == SAVE_SWITCH else "stops at this step"
            self._print_once(f"{self.reason}: every rank {todo}", again=True)
            if kind == SAVE_SWITCH:
                self._watch.on_save_done(token)
        self._ended = kind != SAVE_SWITCH
        self._agreed = KILL if self._ended else SAVE
        self._verdict = None
        return self._agreed

    def _patience(self) -> float:
        """Seconds that what was agreed waits until all ranks are at this poll, where one saves or evaluates alone before it.

        One that has missed it would go on alone, and hang: it waits in the job's own collectives then, which have to outlive that.
        """
        return min(PATIENCE, self._agreement.shortest_timeout() / 2 or PATIENCE)

    def _leave_word(self) -> None:
        rank, size = agreement.rank(), agreement.size()
        word = {"at": time.time(), "polls": self._polls, "rank": rank, "world_size": size}
        self._watch.set_status({**word, "node": socket.gethostname(), "pid": os.getpid()})

    def _give_up(self, error: BaseException) -> None:
        """Switch off after an error, which must not harm the job, and let the other ranks know, so that none waits for this one.

        Raises an interruption (KeyboardInterrupt, SystemExit) again: it is the job's own.
        """
        if isinstance(error, LateError):
            self._verdict = None
        self._off = self._verdict is None  # else all may be there, and obey: the next poll hears it
        why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        try:
            self._notify_others(agreement.rank(), why)
        except Exception as failed:
            pass_on(failed)
        if self._off:
            self._switch_off(why)
        if not isinstance(error, Exception):
            raise error

    def _notify_others(self, me: int, why: str) -> None:
        text = f"rank {me} gave up: {why}"
        if self._off:
            self._agreement.give_up((OFF * _RANKS + me, 0, 1, 0, _FAR), text)
        else:
            self._agreement.stay_away(text)

    def _switch_off(self, why: str) -> None:
        self._off = True
        self._print_once(f"the switches are off, the training goes on: {why}")

    def _print_once(self, text: str, *, again: bool = False) -> None:
        """One line on stderr; each sentence once."""
        if not text or (text in self._printed and not again) or len(self._printed) > REMEMBERED:
            return
        self._printed.add(text)
        if sys.stderr is not None:  # a job without one
            write_lines(f"mldebug: {text}", rank=None, file=sys.stderr)
