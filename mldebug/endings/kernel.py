"""The kernel's words about processes that died: OOM kills and crashes, from lines of /dev/kmsg or dmesg. Pure.

/dev/kmsg gives `priority,sequence,microseconds,flags;text` and continuation lines that begin with a space.
"""

import re
from collections.abc import Iterable, Iterator

from mldebug.endings.facts import KernelDeath
from mldebug.redact import safe_line

_RECORD = re.compile(r"\d+,\d+,(?P<micros>\d+),[^;]*;(?P<text>.*)")
_DMESG = re.compile(r"(?:<\d+>)?\[ *(?P<seconds>\d+\.\d+)(?:\]|\[).*?\]? ?(?P<text>[^ ].*)")
_KILLED = re.compile(r"\bKill(?:ed)? process (?P<pid>\d{1,10}),? \(")
_OOM_TASK = re.compile(r"^oom-kill:constraint=.*,pid=(?P<pid>\d+)(?:,|$)")
_CRASHES = (
    re.compile(r"^[^\[\]]{1,32}\[(?P<pid>\d+)\]: segfault at "),
    re.compile(r"^traps: [^\[\]]{1,32}\[(?P<pid>\d+)\] "),
    re.compile(r"MCE: Killing [^:]{1,32}:(?P<pid>\d+) due to hardware memory corruption"),
)


def kernel_deaths(lines: Iterable[str]) -> tuple[KernelDeath, ...]:
    """Find the deaths among kernel lines, in their order; of two lines about one kill the fuller one stays."""
    found: dict[tuple[int, str], KernelDeath] = {}
    for at, text in _records(lines):
        death = _death(at, text)
        if death is not None:
            found[death.pid, death.kind] = death
    return tuple(found.values())


def _records(lines: Iterable[str]) -> Iterator[tuple[float, str]]:
    for line in lines:
        record = _RECORD.match(line)
        if record:
            yield int(record["micros"]) / 1e6, record["text"]
            continue
        printed = _DMESG.match(line)
        if printed:
            yield float(printed["seconds"]), printed["text"]


def _death(at: float, text: str) -> KernelDeath | None:
    killed = _KILLED.search(text) or _OOM_TASK.match(text)
    if killed:
        return _make(killed, "out_of_memory", at, text)
    crash = next((match for pattern in _CRASHES if (match := pattern.search(text))), None)
    return _make(crash, "crash", at, text) if crash else None


def _make(match: re.Match[str], kind: str, at: float, text: str) -> KernelDeath:
    return KernelDeath(pid=int(match["pid"]), kind=kind, text=safe_line(text, 300), at=at)
