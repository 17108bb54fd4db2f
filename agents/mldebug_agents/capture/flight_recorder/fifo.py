"""PyTorch's debug FIFO (NCCL): one byte written to it makes the rank dump its Flight Recorder into a file and go on.

The rank gathers the Python frames of every call for it, which took 57 s the first time on an H200,
and needs the interpreter lock. So a rank is asked only after every cheaper way, never while an
earlier question is open, and with one byte. A report does not wait for a late dump: the next
capture of the stalled job finds it.
"""

import errno
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mldebug.core.model import RankIdentity
from mldebug_agents.capture.flight_recorder.files import (
    FileStamp,
    FoundDump,
    HangAwareReader,
    file_stamp,
    newest,
    read_dump,
)
from mldebug_agents.system.child.job_paths import Rights

ALIKE = 8  # ranks that are asked where all wait alike
LONGEST = 2.5  # seconds for all answers together: PyTorch looks into the FIFO once a second
MAX_OPEN = 256  # questions without an answer that are remembered
PAUSE, LONGEST_PAUSE = 0.1, 0.5  # seconds between two looks at a file: each twice the last
TRIES = 2  # dumps that are read and found wanting, before we wait no longer
_WHY = {
    errno.ENXIO: "nobody reads its debug FIFO",
    errno.EAGAIN: "its debug FIFO is full: nobody reads it",
    errno.ENOENT: "it has made no debug FIFO",
    errno.EACCES: "its debug FIFO may not be written",
    errno.EPERM: "its debug FIFO may not be written",
}
NO_TIME = "it was not asked by its debug FIFO: no time was left to wait for it"
OPEN = "an earlier question has not been answered yet, so it was not asked again"
INHERITED = (
    "the agent that was here before may have asked it by its debug FIFO, so it was not asked again"
)
FileStamps = tuple[FileStamp | None, ...]


class FifoTarget(NamedTuple):
    """One rank with its FIFO and dump files, as paths from the agent's root."""

    identity: RankIdentity
    fifo: str
    dumps: tuple[str, ...]
    rights: Rights

    @property
    def place(self) -> str:
        """The path of the rank's first dump file, as the rank itself sees it."""
        path = next(iter(self.dumps), "")
        return path.partition(f"/{self.identity.pid}/root")[2] or path

    @property
    def key(self) -> tuple[int, int]:
        """Pid and start time (clock ticks since boot), which together identify a process even if its pid is used again."""
        return self.identity.pid, self.identity.start_ticks


class _FifoQuestion:
    """A rank that was asked: the stamps of its files before, and how often an answer was read."""

    def __init__(self, target: FifoTarget, before: FileStamps) -> None:
        self.one, self.before = target, before
        self.last = self.read = before
        self.tries = 0
        self.why = ""


class Fifo:
    """Asks ranks by their debug FIFO.

    There is one per agent: it remembers which ranks have not answered yet. Safe from any thread.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._open: dict[tuple[int, int], FileStamps] = {}  # (pid, start)
        self._answers: dict[tuple[int, int], FileStamp] = {}
        self._over: dict[tuple[int, int], tuple[FileStamp, ...]] = {}

    def ask(
        self,
        reader: HangAwareReader,
        targets: Sequence[FifoTarget],
        timeout: float,
        since: float = math.inf,
        *,
        resumed: bool = False,
    ) -> dict[int, FoundDump | str]:
        """Ask these ranks, and return by rank the dump or the reason why there is none. Waits at
        most `timeout` seconds, and never longer than `LONGEST`.

        `since`: unix time from which the job has stood still; a dump written after it, for an
        earlier question, is accepted too. `resumed`: an earlier agent may have asked already, so ranks
        that this one has not asked are not asked.
        """
        timeout = min(timeout, LONGEST)
        deadline = self._clock() + timeout
        results: dict[int, FoundDump | str] = {}
        waiting: list[_FifoQuestion] = []
        for one in targets:
            inherited = self._inherit(reader, one, since) if resumed else None
            question = inherited or self._trigger(reader, one, since, timeout)
            if isinstance(question, _FifoQuestion):
                waiting.append(question)
            else:
                results[one.identity.rank] = question
        pause = PAUSE
        while (left := deadline - self._clock()) > 0 and any(it.tries < TRIES for it in waiting):
            self._sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)
            waiting = [one for one in waiting if not self._look(reader, one, results)]
        return results | {it.one.identity.rank: _late(it, timeout) for it in waiting}

    def wrote_over(self, target: FifoTarget) -> FileStamp | None:
        """Return the identity (inode, size and time) of a dump file that was overwritten because this agent asked the rank
        by its FIFO. It is a dump that was written since the rank started and that the agent had not read as an answer
        before. None where no such dump was overwritten, or where this was called before.
        """
        with self._lock:
            found = self._over.pop(target.key, ())
        return next((it for it in found if it.mtime >= target.identity.started_at), None)

    def owes(self, target: FifoTarget) -> bool:
        """Whether this rank was asked and has not answered yet."""
        with self._lock:
            return target.key in self._open

    def _inherit(
        self, reader: HangAwareReader, one: FifoTarget, since: float
    ) -> FoundDump | str | None:
        """The dump that a question of an earlier agent caused, or words that it may still come. None: this agent asked itself."""
        with self._lock:
            if one.key in self._open:
                return None
            found = newest(
                [read_dump(reader, path, one.identity, one.rights) for path in one.dumps]
            )
            if isinstance(found, FoundDump) and found.at >= since:
                self._answers[one.key] = found.mark
                return found
            self._remember(one, _marks(reader, one))
        return f"{INHERITED}; it may still come, into {one.place}"

    def _trigger(
        self, reader: HangAwareReader, one: FifoTarget, since: float, timeout: float
    ) -> _FifoQuestion | FoundDump | str:
        """Ask the rank; or return the dump of an earlier question that came late, or why it was not asked."""
        with self._lock:
            earlier = self._open.get(one.key)
            late = "" if earlier is None else _answer(reader, one, earlier)
            if earlier is not None and not isinstance(late, FoundDump):
                return f"{OPEN}; it may still come, into {one.place}"
            if isinstance(late, FoundDump):
                self._answers[one.key] = late.mark
            if isinstance(late, FoundDump) and late.at >= since:
                del self._open[one.key]
                return late
            if timeout <= 0:
                return NO_TIME
            before = _marks(reader, one)
            refused = reader.write_byte(one.fifo, rights=one.rights)
            if refused is not None:
                return _WHY.get(refused.errno or 0) or f"its debug FIFO: {refused.reason}"
            own = self._answers.get(one.key)
            self._over[one.key] = tuple(it for it in before if it is not None and it != own)
            self._remember(one, before)
        return _FifoQuestion(one, before)

    def _remember(self, target: FifoTarget, before: FileStamps) -> None:
        """Remember that a rank owes an answer; at most `MAX_OPEN` ranks."""
        self._open[target.key] = before
        for memory in (self._open, self._answers, self._over):
            while len(memory) > MAX_OPEN:
                del memory[next(iter(memory))]

    def _look(
        self, reader: HangAwareReader, it: _FifoQuestion, results: dict[int, FoundDump | str]
    ) -> bool:
        """Has the answer come? A file is read only once it has changed, and then stayed as it was for one pause."""
        now = _marks(reader, it.one)
        settled, it.last = now == it.last and now not in (it.before, it.read), now
        if it.tries >= TRIES or not settled:
            return False
        it.read = now
        found = _answer(reader, it.one, it.before)
        if isinstance(found, FoundDump):
            results[it.one.identity.rank] = found
            with self._lock:
                self._open.pop(it.one.key, None)
                self._answers[it.one.key] = found.mark
            return True
        it.tries, it.why = it.tries + 1, found
        return False


def _answer(reader: HangAwareReader, target: FifoTarget, before: FileStamps) -> FoundDump | str:
    """The newest dump written since the question: only files whose stamp has changed count."""
    now = zip(target.dumps, before, _marks(reader, target), strict=True)
    changed = [path for path, then, mine in now if mine is not None and mine != then]
    return newest([read_dump(reader, path, target.identity, target.rights) for path in changed])


def _marks(reader: HangAwareReader, target: FifoTarget) -> FileStamps:
    return tuple(file_stamp(reader, path, target.rights) for path in target.dumps)


def _late(it: _FifoQuestion, seconds: float) -> str:
    why = f" ({it.why})" if it.why else ""
    return (
        f"no dump by its debug FIFO in {seconds:g} s{why}; it may still come, into {it.one.place}"
    )


def ranks_to_ask(lagging: bool, waiting: Sequence[int]) -> tuple[int, ...]:
    """Return which of the `waiting` ranks to ask for their Flight Recorder: only the first one if the stacks already show
    which rank lags behind (`lagging`), else the first `ALIKE`.
    """
    return tuple(waiting[: 1 if lagging else ALIKE])


def patience(left: float) -> float:
    """How many seconds a capture may wait for answers by FIFO: at most `LONGEST`, and 5 s less than
    `left` until its deadline.
    """
    return max(0.0, min(LONGEST, left - 5.0))
