"""Traces the calls of this process into a ring file of fixed size that stays after a crash: `with trace("mypkg"): train()`.

The ring is made when the first traced function is called, so a process that calls none has none. `mldebug trace show` reads it,
while the process runs or after it was killed. `mldebug_training.tracing.ring` describes the ring,
`mldebug_training.tracing.filters` what can be traced. Only wrong arguments raise. Where there is no space or permission, or the job
uses what tracing needs, tracing is off and says so once on stderr.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from _thread import RLock

from mldebug_training.common.child_end import at_end, is_worker
from mldebug_training.common.interrupted import pass_on
from mldebug_training.common.signals import closed
from mldebug_training.common.writing import write_all
from mldebug_training.hook.process import own
from mldebug_training.tracing import ring as layout
from mldebug_training.tracing.engines import UNTRACED, engine_for, native_module
from mldebug_training.tracing.filters import UNINSTALLED, Code, CodeFilter, globals_of, is_called
from mldebug_training.tracing.moments import on_signal, signal_of, step_of
from mldebug_training.tracing.ring_file import ProcessRing, leave_behind
from mldebug_training.tracing.ring_writer import RingWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType
    from typing import Any

DEFAULT_SIZE = 64 << 20  # bytes
OF_CHILDREN = 8  # a forked child gets that part of it: there may be many
SMALLEST_OF_CHILDREN = 1 << 20
SAYS_WITHIN = 1.0  # seconds for a line on stderr, which may be a pipe that nobody reads

__all__ = ["DEFAULT_SIZE", "trace"]


class trace:  # noqa: N801 - it is used as a function
    """`with trace("mypkg", "torch.nn", exclude=[...], start="train_step"):`, or `begin()` and `end()`.

    Without names, all code is traced that is not installed. `start` and `stop`: a function that is called, `step:118`, or
    `signal:USR2`. `ring`: the file, kept afterwards; `{pid}`, `{rank}` and `{host}` in it are filled in; without it the ring is
    in /dev/shm, and removed when the process ends well. `size` in bytes. One trace at a time: a second one inside the first
    does nothing. Raises ValueError for invalid arguments.
    """

    def __init__(
        self,
        *include: str,
        exclude: Sequence[str] = (),
        start: str = "",
        stop: str = "",
        calls: bool = True,
        lines: bool = False,
        ring: str | None = None,
        size: int = DEFAULT_SIZE,
        native: bool = True,
    ) -> None:
        if not (calls or lines):
            raise ValueError("neither calls nor lines are to be traced")
        self._followed = CodeFilter(include or (UNINSTALLED,), exclude, start)
        self._first, self._last = step_of(start), step_of(stop)
        self._signals = tuple({one for one in map(signal_of, (start, stop)) if one is not None})
        self._start, self._stop = start, stop
        self._over = self._ended = False
        self._place = ring
        self._size, self._waits = size, bool(start)
        self._child = False
        self._mode = (layout.CALLS if calls else 0) | (layout.LINES if lines else 0)
        self._native = native
        self._off = True
        self._why = ""
        self._making = RLock()
        self._file: ProcessRing | None = None
        self._writer: RingWriter | None = None
        self._engine: Any = None
        layout.division(size)

    @property
    def path(self) -> str | None:
        """The path of the ring file; None where no traced function was called yet, or it could not be made."""
        return self._file.path if self._file is not None else None

    @property
    def why(self) -> str:
        """Why tracing is off, or incomplete; "" where it is neither."""
        return self._why

    @property
    def followed(self) -> str:
        """What is traced, in words: "include=mypkg exclude=- start=train_step"."""
        return self._followed.words

    @property
    def engine(self) -> str:
        """The engine that runs: "monitoring, native" or the like; "" for none."""
        return str(self._engine.name) if self._engine is not None else ""

    def __enter__(self) -> trace:  # noqa: PYI034 - Python 3.9 knows no Self
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def also(self, words: str) -> None:
        """Add words to the description of what is traced, which is written into the ring."""
        self._followed.describe(words)

    def begin(self) -> None:
        """Trace all threads from now on. Does nothing while another trace runs. Where it is impossible, stderr and `why` say so."""
        if _running:
            return
        _running.append(self)
        own.call_after_beat(stepped)
        closed(leave_behind)
        self._off = self._over = self._ended = False
        native = native_module() if self._native else None
        self._engine = engine_for(self.decide, self._aside, self._mode, native)
        try:
            why = self._wait() or self._engine.begin()
        except Exception as error:
            pass_on(error)
            why = f"it cannot begin: {error}"
        if why:
            _running.clear()
            self._refuse(why)

    def end(self, keep: bool = True) -> None:
        """Stop tracing. `keep` False: the ring is removed too, if it is in the default folder or a forked child's."""
        if self not in _running:
            return
        _running.clear()
        self._off = True
        self._end_engine()
        if self._file is not None:
            self._file.set_state(layout.ENDED, self._why)
            self._file.close(keep or not (self._file.default or self._child))
            self._writer = None

    def step(self, number: int) -> None:
        """Write that this step was reached, and begin or end the trace if that is its moment. The hook calls it by itself."""
        try:
            if self._last is not None and number >= self._last:
                self._finish()
            if self._over:
                self._end_engine()
                return
            if self._first is not None and number >= self._first:
                self._go()
            self._engine.step(number)
        except Exception as error:
            pass_on(error)

    def decide(self, code: CodeType, known: dict[str, Any] | None = None) -> int:
        """The number of the function in the ring, or UNTRACED. The engine calls it once for each code object.

        `known`: the globals of the frame that runs the code; None to look for them among the callers.
        """
        try:
            if self._off:
                return UNTRACED
            return self._decide(code, Code(code, known or globals_of(code)))
        except RecursionError:
            raise  # nothing can be called here; the engine asks again
        except Exception as error:
            pass_on(error)
            return UNTRACED

    def _wait(self) -> str:
        """For its signals. Returns why it cannot, or nothing."""
        whys = [on_signal(one, lambda one=one: self._signalled(one)) for one in self._signals]  # type: ignore[misc]
        return next(filter(None, whys), "")

    def _signalled(self, number: int) -> None:
        if self not in _running:
            return
        if self._waits and signal_of(self._start) == number:
            self._go()
        elif signal_of(self._stop) == number:
            self._finish()

    def _go(self) -> None:
        """Where it waited to begin: now."""
        if self._waits:
            self._waits = False
            self._engine.again()

    def _finish(self) -> None:
        """Write nothing more. The ring stays this process's, so that it tells it when the rank dies later."""
        if self._over or self._off:
            return
        self._over = self._off = True
        self._engine.pause(True)
        self._why = self._why or f"{self._stop} was reached"
        if self._file is not None:
            self._file.set_state(layout.ENDED, self._why)

    def _end_engine(self) -> None:
        """Once; never while it asks about code."""
        if self._ended:
            return
        self._ended = True
        try:
            self._engine.end()
        except Exception as error:
            pass_on(error)

    def _decide(self, code: CodeType, known: Code) -> int:
        if self._stop and not self._waits and is_called(self._stop, known):
            self._finish()
            return UNTRACED
        begins = self._waits and self._followed.begins(known)
        if self._waits and not begins:
            return UNTRACED
        if not begins and not self._followed.follows(known):
            return UNTRACED
        if begins:
            self._go()
        with self._making:
            if self._writer is None:
                closed(self._make)
        if self._writer is None:
            return UNTRACED
        number = self._writer.names.function(known.path, known.module, known.name, known.line)
        self._engine.follow(code)
        return number

    def _make(self) -> None:
        """Make the ring, undisturbed by signals; where that fails tracing is off."""
        try:
            place = self._place and _filled(self._place)
            file = self._new_file(place)
        except OSError as error:
            pass_on(error)
            self._off = True
            place = self._place or "/dev/shm"  # noqa: S108 - only named
            self._refuse(f"{place}: {(error.strerror or str(error)).lower()}")
            return
        step, then = own.reached()
        if step >= 0:  # steps were told before anything was called that is followed
            file.step(step, then)
        self._file = file
        self._writer = self._engine.use(file)
        at_end(self.end)
        file.set_state(layout.ASIDE if self._why else layout.TRACING, self._why)

    def _new_file(self, place: str | None) -> ProcessRing:
        if not self._child and is_worker():
            self._become_child()
        if place and self._child and "{pid}" not in (self._place or ""):
            place += f".{os.getpid()}"  # the name alone is the parent's, whoever comes first
        words = self._followed.words
        return ProcessRing(place, self._size, self._engine.name, self._mode, words, self._child)

    def _become_child(self) -> None:
        self._size = max(self._size // OF_CHILDREN, min(SMALLEST_OF_CHILDREN, self._size))
        self._child = True

    def _aside(self, why: str) -> None:
        """The engine says that the job uses what tracing needs, or by "" that it no longer does."""
        self._why = why
        if self._file is not None:
            self._file.set_state(layout.ASIDE if why else layout.TRACING, why)

    def _refuse(self, why: str) -> None:
        self._why = why
        write_stderr(f"mldebug: tracing is off: {why}\n")

    def pause(self, paused: bool) -> None:
        """Pause or continue tracing; used around a fork."""
        if not self._off:
            self._engine.pause(paused)

    def forked(self) -> None:
        """In a forked child: drop the parent's ring; the child gets a smaller one of its own at its first traced call."""
        file, self._file, self._writer = self._file, None, None
        self._making = RLock()
        if file is not None:
            file.forget()
        self._engine.forked()
        self._become_child()
        self._engine.again()
        self._engine.pause(self._over)


_running: list[trace] = []


def running() -> trace | None:
    """The trace of this process that has begun and not ended; None without one."""
    return _running[0] if _running else None


def stepped(number: int) -> None:
    """Write that a step was reached into the ring of the running trace, if there is one."""
    for one in _running:
        one.step(number)


def _filled(place: str) -> str:
    rank = os.environ.get("RANK", "0")
    known = {"{pid}": str(os.getpid()), "{rank}": rank, "{host}": os.uname().nodename}
    for word, value in known.items():
        place = place.replace(word, value)
    return place


def write_stderr(text: str) -> None:
    """Print one line on stderr; errors are ignored."""
    try:
        write_all(2, (text.encode("utf-8", "replace"),), time.monotonic() + SAYS_WITHIN)
    except Exception as error:  # stderr is closed
        pass_on(error)


def _pause() -> None:
    for one in _running:
        one.pause(True)


def _resume() -> None:
    for one in _running:
        one.pause(False)


def _forked() -> None:
    for one in _running:
        one.forked()


def _end() -> None:
    """The process ends well, or by an exception that was shown: only then somebody asks what it did."""
    failed = hasattr(sys, "last_value") or hasattr(sys, "last_exc")
    for one in tuple(_running):
        one.end(keep=failed)


os.register_at_fork(before=_pause, after_in_parent=_resume, after_in_child=_forked)
atexit.register(_end)
