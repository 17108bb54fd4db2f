"""The three signals of the hook: how they are chosen, and how they are kept from the job's threads.

`ask` requests all stacks, the number below it forces them, and the one below that requests the Flight Recorder. They are from the
middle of the real-time signals: the lowest are used by glibc and Go, the highest by valgrind and Java, and batch systems send these
to jobs. The C module `_signal` is used, since `signal` imports `enum`, which takes milliseconds in every process.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os

from mldebug_training.common.interrupted import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    T = TypeVar("T")

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


def closed(call: Callable[..., T], *args: Any) -> T:
    """Call a function with all signals blocked that are not faults, and return its result. A thread that it starts keeps them
    blocked,

    so that it does not take a signal for which a thread of the job waits (`sigwait`, signalfd). The kernel could deliver it to
    our thread, where its default action ends the process.
    """
    return _masked(_signal.valid_signals() - _FAULTS, call, args)


def shielded(number: int, call: Callable[..., T], *args: Any) -> T:
    """Call a function that may raise signal `number` in this process, and return its result.

    Where the signal has its default action, which would end the process, it is blocked during the call and then dropped.
    """
    if _signal.getsignal(number) != _signal.SIG_DFL or number in _signal.sigpending():
        return call(*args)
    return _masked((number,), call, args, (number,))


def _masked(
    numbers: Iterable[int], call: Callable[..., T], args: Any, dropped: tuple[int, ...] = ()
) -> T:
    """Call it with these signals blocked. What a handler of the job raises, at whatever line, leaves the mask as it was.

    Restored twice: the second time for what interrupts the first. A class with `__exit__` has no second time.
    """
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    try:
        try:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, numbers)
            return call(*args)
        finally:
            _restore(before, dropped)
    finally:
        _restore(before, dropped)


def _restore(mask: Iterable[int], dropped: tuple[int, ...]) -> None:
    if dropped:
        _signal.sigtimedwait(dropped, 0)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


def free_signal() -> int:
    """The number `ask` of the highest three neighbouring signals (`ask`, `ask`-1, `ask`-2) that neither Python nor C code
    handles; 0 where there are none.
    """
    taken = _taken()
    for ask in range(_signal.SIGRTMIN + _HIGHEST, _signal.SIGRTMIN + _HIGHEST - _CANDIDATES, -1):
        if not any(taken >> (one - 1) & 1 or not is_ours(one) for one in family(ask)):
            return int(ask)
    return 0


def family(ask: int) -> tuple[int, int, int]:
    """The three signals of the hook: the one for stacks (`ask`), for stacks by force (`ask`-1), and for the Flight Recorder
    (`ask`-2).
    """
    return ask, ask - 1, ask - 2


def is_ours(number: int) -> bool:
    """Whether no Python code of the job has a handler for this signal."""
    return _signal.getsignal(number) in _OURS


def block() -> None:
    """Block the three signals by which the agent asks mldebug's hook in this process (see the top of this file), in this thread and in
    threads that it starts from now on. Threads that were started before can be interrupted by them, so it is done early.
    """
    ask = free_signal()
    if ask:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, family(ask))
        at_fork(ask)


def reopen(ask: int) -> None:
    """Unblock the signals that `block` has blocked, except those that are in use now (`ask`); 0: unblock all of them."""
    early = family(_blocked[0]) if _blocked else ()
    unused = [number for number in early if not ask or number not in family(ask)]
    if unused:
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, unused)


def at_fork(ask: int) -> None:
    """Have children that are forked from now on remove the hook's handlers and unblock its three signals, since no agent
    signals them. `ask`: the number of the signal that requests stacks, the highest of the three.
    """
    if not _blocked:
        os.register_at_fork(after_in_child=_give_back)
    _blocked[:] = [ask]


def all_closed(ask: int) -> bool:
    """Whether every thread of this process has the hook's three signals blocked (`ask`: the highest of their numbers). If
    not, the kernel may deliver one to a thread of the job.

    Raises OSError or ValueError where /proc does not tell. Threads that a thread starts later inherit the block.
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


def taken(number: int) -> bool:
    """Whether this process catches or ignores the signal, by Python or C code."""
    return bool(_taken() >> (number - 1) & 1)


def _taken() -> int:
    try:
        return _mask("/proc/self/status", b"SigCgt", b"SigIgn")
    except (OSError, ValueError) as error:
        pass_on(error)
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
        pass  # the interpreter ends: there is nobody to tell, and the job must end as it would
