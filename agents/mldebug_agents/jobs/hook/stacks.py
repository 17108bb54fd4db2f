"""Stacks without ptrace: the hook in the process writes them itself when its signal comes (see `mldebug_training.hook.stacks`).

Who may be asked, and how: `mldebug_agents.jobs.hook.signals`. The second signal has C code walk the frames without the interpreter
lock, which may end a process whose Python runs. So it is sent only where the first was taken and not answered, and no thread
of the process runs: there the lock is held by C code that sleeps. C code that computes with it leaves us without an answer.

The hook writes at the front of its file again when half of it is used. So a smaller position is news as well as a larger one;
but where it only moved, somebody else may have asked at the same moment. What counts is an answer that is whole, between two
lines with its number, in the part of the file that was written since the question, and only where nobody but the user of the
process could have written it.
"""

import re
import time

from mldebug.capture.stacks.form import named_frame
from mldebug.core.model import MAIN_THREAD, Frame, ThreadStack
from mldebug.core.redact import clean
from mldebug.jobs.heartbeat import STACKS
from mldebug_agents.jobs.hook.records import check_owner
from mldebug_agents.jobs.hook.signals import HookSignals, SignalTarget
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import FilePiece

MAX_TEXT = 256 << 10  # the room of its file: beyond it nobody is forced, or it would grow
PAUSE = 0.02  # seconds between two looks whether it has written
PATIENCE = 2.0  # seconds for an answer, and again when it is forced
MAX_FORCED = 4096  # processes that are remembered
QUIET = 3  # looks without more, after which it has written all
_THREAD = re.compile(
    r"^(?:Current thread|Thread) 0x([0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):"
)
_WHOLE = re.compile(r"^Stacks (\d+):\n((?:(?!Stacks \d).*\n)*?)End of stacks \1\.$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')


class HookStacks:
    """Has processes that were started with `mldebug run` write their Python stacks. Never raises for what processes do."""

    def __init__(self, asking: HookSignals, reader: Reader) -> None:
        self._asking = asking
        self._reader = reader
        self._forced: set[tuple[int, int]] = set()  # (pid, start)

    def dump(self, pid: int, timeout: float = PATIENCE) -> tuple[ThreadStack, ...]:
        """The stacks of all Python threads of one process, innermost frame first.

        Waits at most `timeout` seconds for each signal; empty where it cannot or must not be asked.
        """
        with self._asking.hold(pid) as one:
            try:
                return self._dump(one, timeout) if one is not None else ()
            except OSError:  # no right to signal it, or it is gone
                return ()

    def _dump(self, process: SignalTarget, timeout: float) -> tuple[ThreadStack, ...]:
        ask = process.beat.signal or 0
        for number in (ask, ask - 1):
            if not self._asking.ask(process, number):
                return ()
            text = (
                self._by_force(process, timeout)
                if number != ask
                else self._answer(process, timeout)
            )
            if text:
                self._note(process.key, forced=number != ask)
                return parse_faulthandler(text, process.pid, process.beat.main_thread)
            if self._asking.pends(process.pid, ask) and process.key not in self._forced:
                return ()  # not even taken: the machine is slow, or the process is; nothing is known to be stuck
            if number == ask and not self._may_force(process):
                return ()
        return ()

    def _may_force(self, process: SignalTarget) -> bool:
        room = process.position < MAX_TEXT
        return (
            room
            and self._asking.stuck(process)
            and self._asking.position(process) == process.position
        )

    def _note(self, key: tuple[int, int], *, forced: bool) -> None:
        """Whose listener still waits for the lock since an earlier question cannot take the next one."""
        if forced and len(self._forced) < MAX_FORCED:
            self._forced.add(key)
        elif not forced:
            self._forced.discard(key)

    def _answer(self, process: SignalTarget, timeout: float) -> str:
        """What it has written since the question, as soon as that is whole; "" where it never is."""
        deadline, last = time.monotonic() + timeout, process.position
        while time.monotonic() < deadline:
            time.sleep(PAUSE)
            now = self._position(process)
            if now == last:
                continue
            text, last = whole_answer(self._text(process, now)), now
            if text is not None:
                return text
        return ""

    def _by_force(self, process: SignalTarget, timeout: float) -> str:
        """The same of C code, which says no end: it is quiet then."""
        before = process.position
        deadline, last, same = time.monotonic() + timeout, before, 0
        while time.monotonic() < deadline and same < QUIET:
            time.sleep(PAUSE)
            now = self._position(process)
            same = same + 1 if now == last != before else 0
            last = now
        text = self._text(process, last) if last != before else ""
        return whole_answer(text) or text

    def _position(self, process: SignalTarget) -> int:
        now = self._asking.position(process)
        return process.position if now is None else now

    def _text(self, process: SignalTarget, now: int) -> str:
        """What was written since the question: where it stands before that, it has begun at the front since."""
        begin = process.position if now > process.position else 0
        path, rights = self._asking.path(process, STACKS), self._asking.rights(process)
        size = min(MAX_TEXT, now - begin)
        piece = self._reader.read_from(path, begin, rights=rights, max_bytes=size)
        if not isinstance(piece, FilePiece):
            return ""
        try:
            check_owner(piece, process.identity.uid)
        except ValueError:
            return ""
        return piece.data.decode(errors="replace")


def whole_answer(text: str) -> str | None:
    """The last complete answer of the hook in this text; None where there is none."""
    found = [match[2] for match in _WHOLE.finditer(text)]
    return found[-1] if found else None


def parse_faulthandler(text: str, pid: int, main: int) -> tuple[ThreadStack, ...]:
    """The stacks in one output of `faulthandler`, the main thread's first.

    `main`: faulthandler's number of the main thread, which gets `pid` as its id.
    """
    found: list[tuple[int, str, list[Frame]]] = []
    for line in text.splitlines():
        if match := _THREAD.match(line):
            is_main = (number := int(match[1], 16)) == main
            if any(one[0] == (pid if is_main else number) for one in found):
                break  # from here on it is what somebody else has asked for
            name = MAIN_THREAD if is_main else clean(match[2] or "", 64)
            found.append((pid if is_main else number, name, []))
        elif found and (match := _FRAME.match(line)):
            found[-1][2].append(named_frame(match[1], match[2], match[3]))
    ordered = sorted(found, key=lambda one: one[1] != MAIN_THREAD)
    return tuple(
        ThreadStack(tid=tid, name=name, frames=tuple(frames)) for tid, name, frames in ordered
    )
