"""What the threads of a process say about asking it: which of them take its signals, and whether any of them runs."""

import os
import re
import time

from mldebug_agents.system import procfs
from mldebug_agents.system.host import Host

LOOKS = 6
ASLEEP = 2  # of them at least: on a crowded machine who polls for a lock is often seen waiting for a processor
PAUSE = 0.2  # seconds between two of them
_FAMILY = 3  # signals of the hook: the one that asks and the two below
_BUSY = 0.015  # CPU seconds between the first look and the last: more than one clock tick, which who polls for a lock may take


def only_the_hooks(host: Host, pid: int, ask: int) -> bool:
    """Is at most one thread open to the signals of the hook, its own? False where the kernel does not say."""
    opened = [_is_open(host.text(pid, f"task/{tid}/status"), ask) for tid in _tids(host, pid)]
    return bool(opened) and sum(opened) <= 1


def still(host: Host, pid: int) -> bool:
    """Do all threads sleep, and the main thread without waking? Takes a second.

    Who waits for the interpreter lock wakes 200 times a second to ask for it: it may be seen running, and takes hardly any CPU
    time. Who is kept from running by others on the machine is seen so at every look.
    """
    woken = host.status(pid).voluntary_switches
    looks = [_look(host, pid)]
    while len(looks) < LOOKS and looks[-1].get(pid, ("", 0))[0] == "S":
        time.sleep(PAUSE)
        looks.append(_look(host, pid))
    first, last = looks[0], looks[-1]
    if len(looks) < LOOKS or any(look.keys() != first.keys() for look in looks):
        return False
    states = {tid: "".join(look[tid][0] for look in looks) for tid in first}
    return (
        set(states[pid]) == {"S"}
        and host.status(pid).voluntary_switches == woken
        and all(set(seen) <= set("SR") and seen.count("S") >= ASLEEP for seen in states.values())
        and all(last[tid][1] - first[tid][1] < _BUSY for tid in first)
    )


def _look(host: Host, pid: int) -> dict[int, tuple[str, float]]:
    """State and CPU seconds of each thread."""
    stats = {tid: procfs.parse_stat(host.text(pid, f"task/{tid}/stat")) for tid in _tids(host, pid)}
    return {tid: (one.state, one.cpu_seconds) for tid, one in stats.items() if one is not None}


def _is_open(status: str, ask: int) -> bool:
    """Does a thread with this status take one of the signals? One that has just ended has no status, and takes none."""
    found = re.search(r"^SigBlk:\s*([0-9a-f]+)$", status, re.MULTILINE)
    if found is None:
        return bool(status)
    blocked = int(found[1], 16)
    return any(not blocked >> (ask - below - 1) & 1 for below in range(_FAMILY))


def _tids(host: Host, pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"{host.proc}/{pid}/task") if name.isdecimal()]
    except OSError:
        return []
