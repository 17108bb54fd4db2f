"""Writes the stacks of all threads of this process when a real-time signal comes, in a thread of the hook: nobody has to attach.

Three signals, all blocked in the threads of the job, so that no system call of the job is ever interrupted:

ask    taken by `sigwait` in our thread, which then walks all frames under the interpreter lock, as any Python code would.
force  one number below: C code of faulthandler, run on our thread without that lock. It reads what others may be changing, so
       it is only for a process where the lock is stuck: `ask` was taken and not answered. Nobody can change anything there.
flight two numbers below: taken by `sigwait` as well; then `mldebug_training.hook.flight_recorder` writes what it knows.

What `ask` has written stands between two lines with its number, `Stacks 7:` and `End of stacks 7.`, so that nobody takes an older
answer, or a half of one, for a new one. It begins at the front of the file again where more than half of that is used, and
takes no more than half: so the file does not grow, however often somebody asks, and whether the process steps or hangs. What
`force` writes is C code's, goes on where the file stands, and is bounded by who asks: nobody does beyond the file's end.

All have a handler, because the default action of a real-time signal ends the process. A program that takes this process's
place by exec has none, but inherits the block; and the sender of a signal looks first whether it is caught.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading

from mldebug_training.common import natives
from mldebug_training.common.interrupted import pass_on
from mldebug_training.common.own_file import OwnFile
from mldebug_training.common.shared_files import remove, reserve
from mldebug_training.common.signals import (
    all_closed,
    at_fork,
    closed,
    family,
    free_signal,
    is_ours,
    reopen,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable
    from types import FrameType

    from mldebug_training.hook.record import HookRecord

SUFFIX = ".stacks"
ROOM = 256 << 10  # bytes, reserved ahead: a /dev/shm that is full by then costs nothing
MOST = ROOM // 2  # bytes of one answer
READY = 1.0  # seconds at most until our thread listens
MAX_FRAMES = 150  # of one thread, from the inside


def arm(
    path: str, answer_flight: Callable[[], None], after_stacks: Callable[[], None] = lambda: None
) -> tuple[int, int]:
    """Set handlers for the hook's three signals: two write the stacks to `path`.stacks, one calls `answer_flight` for the
    Flight Recorder. `after_stacks` is called after the stacks were written: who asked may want more.

    Returns the signal that requests stacks and the descriptor of their file; 0 and -1 where that fails, or where a thread that
    C code started earlier does not block the signals, since the kernel could deliver them to it.
    """
    ask = free_signal() if natives.NATIVE else 0
    reopen(ask)
    if not ask:
        return 0, -1
    before = signal.pthread_sigmask(signal.SIG_BLOCK, family(ask))
    try:
        if all_closed(ask):
            return ask, _listening(ask, path, (answer_flight, after_stacks))
    except Exception as error:  # no thread, no room, a faulthandler without its half
        _open_again(before)
        pass_on(error)
        return 0, -1
    _open_again(before)
    return 0, -1


def _open_again(before: set[int]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    reopen(0)


def _listening(ask: int, path: str, answers: tuple[Callable[[], None], ...]) -> int:
    """The file that the hook's thread writes from now on. The thread is not one of `threading`'s, for all of which a job may wait."""
    fd = reserve(path + SUFFIX, ROOM)
    try:
        _catch(ask, fd)
        ready = natives.allocate_lock()
        ready.acquire()
        closed(natives.start_new_thread, _listen, (ask, OwnFile(fd), answers, ready))
    except Exception:
        remove(path + SUFFIX)
        os.close(fd)
        _let_go(ask)
        raise
    ready.acquire(
        timeout=READY
    )  # or C code that takes the interpreter lock next would keep it from listening
    return fd


def _catch(ask: int, fd: int) -> None:
    at_fork(ask)
    for number in family(ask):
        _ignore(number)  # so that faulthandler, when it lets go, comes back to this
        faulthandler.register(number, file=fd, all_threads=number == ask - 1, chain=False)


def disarm(record: HookRecord, ask: int) -> None:
    """At the end of the process: record that it answers no signal any more, and ignore the hook's three signals from now
    on. `ask`: the number of the one that requests stacks.
    """
    record.set_stack_signal(0, record.stacks_fd)
    try:
        record.write()
    finally:
        _let_go(ask)


def _let_go(ask: int) -> None:
    for number in family(ask) if ask else ():
        faulthandler.unregister(number)
        if is_ours(number):
            _ignore(number)


def _ignore(number: int) -> None:
    try:
        signal.signal(number, signal.SIG_IGN)
    except ValueError as error:  # not the main thread
        pass_on(error)


def _listen(ask: int, file: OwnFile, more: tuple[Callable[[], None], ...], ready: LockType) -> None:
    """Be the one thread that the signals reach."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (ask - 1,))
    ready.release()
    answer_flight, after_stacks = more
    answers = 0
    while True:
        number = signal.sigwait((ask, ask - 2))
        try:
            if not is_ours(number):
                _hand_on(number)
            elif number == ask:
                answers += 1
                _answer(file, _all_stacks().encode("utf-8", "replace"), answers)
                after_stacks()
            else:
                answer_flight()
        except Exception:
            pass  # nothing may end the listener; who asked sees that no answer comes


def _answer(file: OwnFile, stacks: bytes, number: int) -> None:
    """Write it in one piece, at the front again where half of the file is used; too many stacks are cut after a line."""
    head, foot = b"Stacks %d:\n" % number, b"End of stacks %d.\n" % number
    most = MOST - len(head) - len(foot)
    if len(stacks) > most:
        stacks = stacks[: stacks.rfind(b"\n", 0, most) + 1]
    if file.mine() and os.lseek(file.fd, 0, os.SEEK_CUR) > ROOM - MOST:
        os.lseek(file.fd, 0, os.SEEK_SET)
    file.write(head + stacks + foot)


def _hand_on(number: int) -> None:
    """The job has a handler for it since: Python notes it here, and runs it in the main thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
    signal.pthread_kill(natives.get_ident(), number)
    signal.pthread_sigmask(signal.SIG_BLOCK, (number,))


def _all_stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = natives.get_ident()
    frames, main = sys._current_frames(), threading.main_thread().ident
    found = sorted(frames.items(), key=lambda one: one[0] != main)  # if any is cut, not that one
    return "\n".join(_stack(one, names.get(one, ""), frame) for one, frame in found if one != own)


def _stack(ident: int, name: str, frame: FrameType | None) -> str:
    """In faulthandler's words."""
    lines = [f"Thread 0x{ident:016x} [{name}] (most recent call first):"]
    while frame is not None and len(lines) <= MAX_FRAMES:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return "\n".join(lines) + "\n"
