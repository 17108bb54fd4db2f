"""Activity of one process in five cheap reads, whatever the number of its threads: what the watch compares at every look."""

import re

import msgspec

from mldebug_agents import procfs
from mldebug_agents.host import Host

_SWITCHES = re.compile(r"^voluntary_ctxt_switches:\s*(\d{1,19})", re.MULTILINE)


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the process started. A part that may not be read stays at its default."""

    state: str = ""  # of the process
    wchan: str = ""
    thread_cpu_seconds: float = 0.0  # of the followed thread
    cpu_seconds: float = 0.0  # all threads, those that ended included
    switches: int = 0  # voluntary ones of the followed thread
    io_bytes: int = 0  # through read and write calls


def read_activity(host: Host, pid: int, start_ticks: int, tid: int) -> Activity | None:
    """Look at the process that started then and at one of its threads; None when it is gone, or another one has its pid."""
    thread = procfs.parse_stat(host.text(pid, f"task/{tid}/stat"))
    switches = _SWITCHES.search(host.text(pid, f"task/{tid}/status"))
    io = procfs.parse_io(host.text(pid, "io"))
    wchan = procfs.parse_wchan(host.text(pid, f"task/{tid}/wchan"))
    everybody = host.brief(pid)  # read last: all of the above was of this process
    if everybody is None or everybody.start_ticks != start_ticks:
        return None
    return Activity(
        state=everybody.state,
        wchan=wchan,
        thread_cpu_seconds=thread.cpu_seconds if thread else 0.0,
        cpu_seconds=everybody.cpu_seconds,
        switches=int(switches[1]) if switches else 0,
        io_bytes=io.read_chars + io.written_chars if io else 0,
    )
