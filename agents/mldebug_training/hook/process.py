"""The one record (`hook.record`) of this process, made when it is first needed, and given up in a forked child.

Nothing here raises: whatever is broken around the record, the training goes on without it.
"""

from __future__ import annotations

import atexit
import os
import time

from mldebug_training.common.interrupted import pass_on
from mldebug_training.common.natives import get_ident
from mldebug_training.common.own_file import OwnFile
from mldebug_training.common.shared_files import FOLDER, REQUEST, remove, sweep
from mldebug_training.hook import ranks, stacks
from mldebug_training.hook.flight_recorder import FlightFile, collective_timeout
from mldebug_training.hook.record import HookRecord, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Tuple

    Phase = Tuple[bytes, int]  # its name, and when it began: CLOCK_MONOTONIC, ns
_NONE = (b"", 0)
WITHOUT_STEPS = frozenset(
    {b"evaluate", b"checkpoint_save", b"checkpoint_load", b"data_wait", b"compile"}
)
LOOK_EVERY = 64  # steps


class OwnProcess:
    """The hook's record of this process. A forked child has none until it reports a step or phase itself."""

    def __init__(self, folder: str = FOLDER) -> None:
        self._folder = folder
        self._record: HookRecord | None = None
        self._flight: FlightFile | None = None
        self._stacks = OwnFile(-1)
        self._ask = 0  # the signal that asks for stacks, told or not
        self._tried = False
        self._phases: list[Phase] = []  # that have begun, the last one is told
        self._thread = 0  # that steps; 0: not known yet
        self.explicit = False  # the job tells its steps itself
        self.after_beat: Callable[[int], None] | None = None  # the tracer's
        self.task: Any = None  # a StepTask: what somebody has asked for; set by the hook's thread
        self._take: Callable[[OwnProcess, HookRecord], None] | None = None
        os.register_at_fork(before=self._before_fork, after_in_child=self._forget)
        atexit.register(self.close)

    @property
    def record(self) -> HookRecord | None:
        """The record, made at the first access; None where it cannot be made."""
        if self._record is None and not self._tried:
            self._tried = True
            self._record = self._made()
        return self._record

    def start(self) -> None:
        """Make the record now, so that even a rank that hangs before its first step can be asked for its stacks."""
        _ = self.record

    def report_steps(self) -> None:
        """Have only steps that the job itself reports count from now on, not those of optimizers."""
        self.explicit = True

    def call_after_beat(self, then: Callable[[int], None]) -> None:
        """Have `then(step)` called after each step that is reported. It replaces an earlier one."""
        self.after_beat = then

    def answer_requests(self, take: Callable[[OwnProcess, HookRecord], None]) -> None:
        """Have requests that lie beside the record taken by this function, in the hook's thread."""
        self._take = take

    def begin_task(self, task: Any) -> None:
        """Have this StepTask carried out by the thread that steps, in place of an earlier one."""
        self.task = task

    def end_task(self) -> None:
        """Forget the task that this process was asked for (`StepTask`), because it is over."""
        self.task = None

    def reached(self) -> tuple[int, int]:
        """The last reported step (-1: none) and when it was reported (CLOCK_MONOTONIC, ns). Creates no record file where there is none."""
        return (self._record.step, self._record.stepped_ns) if self._record else (-1, 0)

    def beat(self, step: int) -> None:
        """Report that a step was reached. From then on the calling thread is the one whose phases count."""
        record = self.record
        if record is not None:
            self._thread = get_ident()
            if self._phases and step != record.step:
                self._end_phases(record)
            record.beat(step)
            if self.after_beat is not None:
                self.after_beat(step)
            if self.task is not None:
                self.task.step(step)
            if record.beats % LOOK_EVERY == 1:
                self._look(record)

    def _end_phases(self, record: HookRecord) -> None:
        """No step is made in these: an exception of the job's signal handler has kept us from ending them."""
        self._phases = [phase for phase in self._phases if phase[0] not in WITHOUT_STEPS]
        record.enter(*(self._phases[-1] if self._phases else _NONE))

    def _look(self, record: HookRecord) -> None:
        """Now and then: what does not need to be looked at in each step."""
        if record.signal and not self._stacks.mine():
            self._stop_listening(record)
        seconds = collective_timeout()
        if seconds:
            record.write_timeout(seconds)

    def _stop_listening(self, record: HookRecord) -> None:
        """The job has closed our file of stacks: say that nobody can ask any more."""
        record.set_stack_signal(0)
        record.write()

    def correct(self, step: int) -> None:
        """Give the last reported step another number; this does not count as progress."""
        if self._record is not None and self._record.step >= 0:
            self._record.correct(step)

    @property
    def is_recorded(self) -> bool:
        """Whether there is a record. Unlike `record` this makes none, which a worker that loads samples must not have."""
        return self._record is not None

    def concerns(self) -> bool:
        """Whether phases of the calling thread are reported: only those of the thread that makes the steps."""
        return self._record is not None and self._thread in (0, get_ident())

    def enter(self, phase: str) -> Phase:
        """Report that the process is in this phase from now on. Returns what `leave` needs to end it."""
        now = (_name(phase), time.monotonic_ns())
        task = self.task
        if task is not None:
            _quietly(task.phase, phase)
        if self.record is not None:
            try:
                self._phases.append(now)
                self._show(now)
            except (
                BaseException
            ):  # a handler of the job: what is inside never begins, and nobody leaves it
                self.leave(now)
                raise
        return now

    def leave(self, phase: Phase) -> None:
        """End a phase, and report the one that is still going on: the surrounding one, or another thread's."""
        try:
            self._phases.remove(phase)  # by identity, and no other thread comes between
        except ValueError as error:
            pass_on(error)
            return
        last = self._phases[-1:]
        self._show(last[0] if last else _NONE)

    def _show(self, phase: Phase) -> None:
        record = self._record
        if record is None:
            return
        try:
            record.enter(*phase)
            record.write()
        except Exception as error:  # closed meanwhile, by the end of the process
            pass_on(error)

    def close(self) -> None:
        """Remove the hook's files and report nothing any more. What the agent has read is kept there."""
        record, self._record = self._record, None
        flight, self._flight = self._flight, None
        task, self.task = self.task, None
        self._tried = True
        if task is not None:
            _quietly(task.close)
        if record is not None:
            _quietly(stacks.disarm, record, self._ask)
            _quietly(remove, record.path + stacks.SUFFIX)
            _quietly(record.close)
        if flight is not None:
            _quietly(flight.close)

    def _made(self) -> HookRecord | None:
        try:
            sweep(self._folder)
            record = self._record = HookRecord(self._folder)
        except Exception as error:  # no /dev/shm, a full one, no /proc
            pass_on(error)
            return None
        _quietly(self._arm, record)
        _quietly(record.write)
        return record

    def _arm(self, record: HookRecord) -> None:
        """Say who it is, and how it can be asked. Where that fails it cannot be asked, and tells its steps."""
        record.identify(*ranks.rank_and_size())
        self._flight = flight = FlightFile(record)
        record.set_stack_signal(*stacks.arm(record.path, flight.answer, self._look_for_request))
        self._stacks, self._ask = OwnFile(record.stacks_fd), record.signal
        flight.armed(record.signal)

    def _look_for_request(self) -> None:
        """Called by the hook's thread after it has written the stacks: somebody may ask for more. May raise."""
        record = self._record
        if record is not None and self._take and os.path.lexists(record.path + REQUEST):
            self._take(self, record)

    def _before_fork(self) -> None:
        if self.task is not None:
            _quietly(self.task.before_fork)

    def _forget(self) -> None:
        self.task = None
        record, self._record, self._tried = self._record, None, False
        flight, self._flight = self._flight, None
        stacks_file, self._stacks, self._ask = self._stacks, OwnFile(-1), 0
        self._phases, self._thread, self.explicit = [], 0, False
        _quietly(stacks_file.close)
        if record is not None:
            _quietly(record.close, unlink=False)
        if flight is not None:
            _quietly(flight.close, unlink=False)


def _quietly(does: Callable[..., None], *args: object, **more: object) -> None:
    """Do it; whatever is broken, the process goes on, or ends, as without us."""
    try:
        does(*args, **more)
    except Exception as error:
        pass_on(error)


def _name(phase: object) -> bytes:
    try:
        return short(str(phase), 32)
    except Exception as error:  # a class of the job
        pass_on(error)
        return b""


own = OwnProcess()
