"""The three signals of the hook: which they are, and that the threads of the job do not take them.

`ask` all stacks, one below it `force` them, and one below that: tell the Flight Recorder.

By the C module itself: `signal` brings `enum`, which costs every interpreter some milliseconds.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]

_CANDIDATES = 8  # below the last that are tried


def free_signal() -> int:
    """`ask`: the highest of three neighbours that nobody handles; 0 where there are none."""
    for number in range(_signal.SIGRTMAX - 1, _signal.SIGRTMAX - 1 - _CANDIDATES, -1):
        if all(_signal.getsignal(one) == _signal.SIG_DFL for one in family(number)):
            return int(number)
    return 0


def family(ask: int) -> tuple[int, int, int]:
    """`ask`, `force` and the one of the Flight Recorder."""
    return ask, ask - 1, ask - 2


def block() -> None:
    """Close this thread, and those that it will start, to all three: the earlier, the fewer can be interrupted."""
    ask = free_signal()
    if ask:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, family(ask))
