"""The three signals of the hook: which they are, and that the threads of the job do not take them.

`ask` all stacks, one below it `force` them, and one below that: tell the Flight Recorder. From the middle of the real-time
signals: the lowest are glibc's and Go's, the highest valgrind's and Java's, and batch systems send these to jobs.

By the C module itself: `signal` brings `enum`, which costs every interpreter some milliseconds.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os

_HIGHEST = 15  # above SIGRTMIN: the first that is tried
_CANDIDATES = 9
_THREADS = "/proc/self/task"
_TRIES = 5
_OURS = (
    _signal.SIG_DFL,
    _signal.SIG_IGN,
)  # in Python's own table, where faulthandler writes nothing

_FAULTS = frozenset(
    getattr(_signal, f"SIG{name}") for name in ("ABRT", "BUS", "FPE", "ILL", "SEGV", "SYS", "TRAP")
)  # a thread's own

_blocked: list[int] = []  # `ask` of the family that is blocked


class Closed:
    """`with Closed():` A thread that is started inside takes no signal which is meant for the job.

    A job that waits for one (`sigwait`, signalfd) blocks it in the threads that it knows: the kernel would hand it to ours,
    where its default action ends the process.
    """

    def __enter__(self) -> None:
        self._before = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
        try:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals() - _FAULTS)
        except BaseException:  # a handler of the job was due
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self._before)


class Shield:
    """`with Shield(SIGPIPE):` Where the job has given the signal its default action, which ends the process, this thread does not get it."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        self._up = _signal.getsignal(self._number) == _signal.SIG_DFL
        if self._up:
            self._before = _signal.pthread_sigmask(_signal.SIG_BLOCK, (self._number,))

    def __exit__(self, *_: object) -> None:
        if self._up:
            _signal.sigtimedwait((self._number,), 0)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, self._before)


def free_signal() -> int:
    """`ask`: the highest of three neighbours that nobody handles, in Python or in C; 0 where there are none."""
    taken = _taken()
    for ask in range(_signal.SIGRTMIN + _HIGHEST, _signal.SIGRTMIN + _HIGHEST - _CANDIDATES, -1):
        if not any(taken >> (one - 1) & 1 or not is_ours(one) for one in family(ask)):
            return int(ask)
    return 0


def family(ask: int) -> tuple[int, int, int]:
    """`ask`, `force` and the one of the Flight Recorder."""
    return ask, ask - 1, ask - 2


def is_ours(number: int) -> bool:
    """Has no Python code a handler for it?"""
    return _signal.getsignal(number) in _OURS


def block() -> None:
    """Close this thread, and those that it will start, to all three: the earlier, the fewer can be interrupted."""
    ask = free_signal()
    if ask:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, family(ask))
        at_fork(ask)


def reopen(ask: int) -> None:
    """Give the job back what was closed at the start and is not of the family that was chosen since; 0: all of it.

    It has taken one of them for itself meanwhile.
    """
    early = family(_blocked[0]) if _blocked else ()
    unused = [number for number in early if not ask or number not in family(ask)]
    if unused:
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, unused)


def at_fork(ask: int) -> None:
    """From now on a forked child, which nobody may ask, finds this family as if there were no hook."""
    if not _blocked:
        os.register_at_fork(after_in_child=_give_back)
    _blocked[:] = [ask]


def all_closed(ask: int) -> bool:
    """Has every thread of this process the family blocked? A signal to a process goes to any thread that has not.

    Raises OSError or ValueError where the kernel does not say. Whom a closed thread starts is closed, too.
    """
    for _ in range(_TRIES):
        before = os.listdir(_THREADS)
        if not all(_is_closed(tid, ask) for tid in before):
            return False
        if os.listdir(_THREADS) == before:  # else one that has ended may have started another
            return True
    return False


def _is_closed(tid: str, ask: int) -> bool:
    try:
        blocked = _mask(f"{_THREADS}/{tid}/status", b"SigBlk")
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return True
    return all(blocked >> (one - 1) & 1 for one in family(ask))


def _mask(path: str, *names: bytes) -> int:
    """The signals of these lines of a status file."""
    with open(path, "rb") as file:
        lines = (line.split() for line in file if line.startswith(b"Sig"))
        found = {
            words[0].rstrip(b":"): int(words[1], 16) for words in lines if words[0] != b"SigQ:"
        }
    if not all(name in found for name in names):
        raise ValueError(path)
    return sum(found[name] for name in names)  # nothing is caught and ignored at once


def _taken() -> int:
    try:
        return _mask("/proc/self/status", b"SigCgt", b"SigIgn")
    except (OSError, ValueError):
        return 0


def _give_back() -> None:
    ask = _blocked[0]
    try:
        import faulthandler

        for number in family(ask):
            faulthandler.unregister(number)
            if is_ours(number):
                _signal.signal(number, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, family(ask))
    except Exception:
        pass
