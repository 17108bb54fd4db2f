"""Stacks without ptrace: the hook in the process writes them itself when its signal comes (see `mldebug_training.stacks`).

Who may be asked, and how: `mldebug_agents.hooks.asking`. The second signal has C code walk the frames without the interpreter
lock, which may end a process whose Python runs. So it is sent only where the first was taken and not answered, and no thread
of the process runs: there the lock is held by C code that sleeps. C code that computes with it leaves us without an answer.
"""

import re
import time

from mldebug.heartbeat import STACKS
from mldebug.model import MAIN_THREAD, Frame, ThreadStack
from mldebug.redact import clean
from mldebug.stacks import named_frame
from mldebug_agents.answers import Piece
from mldebug_agents.hooks.asking import Asking, Hooked
from mldebug_agents.reader import Reader

MAX_TEXT = 256 << 10
PAUSE = 0.02  # seconds between two looks whether it has written
PATIENCE = 2.0  # seconds for an answer, and again when it is forced
MAX_FORCED = 4096  # processes that are remembered
QUIET = 3  # looks without more, after which it has written all
_THREAD = re.compile(
    r"^(?:Current thread|Thread) 0x([0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):"
)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')


class HookStacks:
    """Asks processes for their stacks. Never raises for what they do."""

    def __init__(self, asking: Asking, reader: Reader) -> None:
        self._asking = asking
        self._reader = reader
        self._forced: set[tuple[int, int]] = set()  # (pid, start)

    def dump(self, pid: int, timeout: float = PATIENCE) -> tuple[ThreadStack, ...]:
        """All Python threads of one process, innermost frame first; none where it cannot or may not be asked."""
        with self._asking.hold(pid) as one:
            try:
                return self._dump(one, timeout) if one is not None else ()
            except OSError:  # no right to signal it, or it is gone
                return ()

    def _dump(self, one: Hooked, timeout: float) -> tuple[ThreadStack, ...]:
        ask = one.beat.signal or 0
        for number in (ask, ask - 1):
            if not self._asking.ask(one, number):
                return ()
            after = self._written(one, timeout)
            if after > one.position:
                self._note(one.key, forced=number != ask)
                return self._read(one, after)
            if self._asking.pends(one.pid, ask) and one.key not in self._forced:
                return ()  # not even taken: the machine is slow, or the process is; nothing is known to be stuck
            if number == ask and not self._may_force(one):
                return ()
        return ()

    def _may_force(self, one: Hooked) -> bool:
        return self._asking.stuck(one) and self._asking.position(one) == one.position

    def _note(self, key: tuple[int, int], *, forced: bool) -> None:
        """Whose listener still waits for the lock since an earlier question cannot take the next one."""
        if forced and len(self._forced) < MAX_FORCED:
            self._forced.add(key)
        elif not forced:
            self._forced.discard(key)

    def _read(self, one: Hooked, after: int) -> tuple[ThreadStack, ...]:
        size = min(MAX_TEXT, after - one.position)
        path = self._asking.path(one, STACKS)
        piece = self._reader.read_from(path, one.position, max_bytes=size)
        text = piece.data.decode(errors="replace") if isinstance(piece, Piece) else ""
        return parse_faulthandler(text, one.pid, one.beat.main_thread)

    def _written(self, one: Hooked, timeout: float) -> int:
        before = one.position
        deadline, last, same = time.monotonic() + timeout, before, 0
        while time.monotonic() < deadline and same < QUIET:
            time.sleep(PAUSE)
            now = self._asking.position(one) or before
            same = same + 1 if now == last and now > before else 0
            last = now
        return last


def parse_faulthandler(text: str, pid: int, main: int) -> tuple[ThreadStack, ...]:
    """Read what `faulthandler` writes; `main` is its number of the main thread, which comes first and gets the pid."""
    found: list[tuple[int, str, list[Frame]]] = []
    for line in text.splitlines():
        if match := _THREAD.match(line):
            is_main = (number := int(match[1], 16)) == main
            name = MAIN_THREAD if is_main else clean(match[2] or "", 64)
            found.append((pid if is_main else number, name, []))
        elif found and (match := _FRAME.match(line)):
            found[-1][2].append(named_frame(match[1], match[2], match[3]))
    ordered = sorted(found, key=lambda one: one[1] != MAIN_THREAD)
    return tuple(
        ThreadStack(tid=tid, name=name, frames=tuple(frames)) for tid, name, frames in ordered
    )
