"""What the kernel says of processes: killed for memory, alone or with their cgroup, crashed, hung in the kernel."""

import re

from mldebug.hardware.kernel_log.lines.reader import MAX_NAME, KernelText, LineReader, event
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind

NAME = r"(?P<name>[\s\S]{0,15})"
"""What a process is called: any 15 bytes, brackets, colons and numbers too. Greedy: the number behind it is the last."""

# Before 5.x two lines: "Out of memory: Kill process 12 (python) score 9 …", "Killed process 12 (python) total-vm:…"
_KILLED = re.compile(
    r"(?P<words>(?:Memory cgroup )?[Oo]ut of memory(?: \([^)\n]{1,40}\))?: )?Kill(?:ed)? process (?P<pid>\d{1,10}),?"
    rf" \({NAME}\)(?P<rest>(?:,| total-vm| score|$).*)",
    re.DOTALL,
)
_TASK = re.compile(
    r"oom-kill:constraint=(?P<constraint>\w{1,40}),.*?(?:oom_memcg=(?P<limit>[^,\n]{1,512}),|(?P<node>global_oom),)"
    rf"task_memcg=[^\n]{{0,512}}?,task={NAME},pid=(?P<pid>\d{{1,10}})(?:,uid=\d+)?\s*$"
)
_RSS = re.compile(r"\b(?:anon|file|shmem)-rss:(\d{1,15})kB")
_CRASHES = (
    re.compile(rf"{NAME}\[(?P<pid>\d{{1,10}})\]: segfault at "),
    re.compile(rf"traps: {NAME}\[(?P<pid>\d{{1,10}})\] [^\[\]\n]{{1,60}} ip:[0-9a-f]"),
    re.compile(
        rf"(?:Memory failure: )?(?:mce: )?MCE(?: 0x[0-9a-f]{{1,16}})?: Killing {NAME}:(?P<pid>\d{{1,10}}) due to hardware memory"
    ),
    re.compile(
        rf"Memory failure: 0x[0-9a-f]{{1,16}}: (?:Killing|Sending SIGBUS to) {NAME}:(?P<pid>\d{{1,10}}) due to "
    ),
)
_HUNG = re.compile(
    rf"INFO: task {NAME}:(?P<pid>\d{{1,10}}) blocked (?:in I/O wait )?for more than (?P<seconds>\d{{1,9}}) seconds"
)
_GROUP = re.compile(
    r"Tasks in (?P<group>[^\n]{1,512}?) are going to be killed due to memory\.oom\.group set"
)
# Of a program, but in words that no user can choose: behind "name[pid]: " the kernel only has words of its own
_OOMD = re.compile(
    r"systemd-oomd\[\d{1,10}\]: (?:Killed|Marked) (?P<killed>/[^\n]{1,512}?) (?:for killing )?due to memory "
    r"|systemd\[\d{1,10}\]: (?P<unit>[\w@.:\\-]{1,256}): systemd-oomd killed \d{1,9} process"
)


def _killed(line: KernelText) -> KernelEvent | None:
    match = _KILLED.match(line.text)
    if match is None:
        return None
    sizes = _RSS.findall(match["rest"])
    words = match["words"] or ""
    return event(
        line,
        KernelEventKind.OOM_KILL,
        pid=int(match["pid"]),
        process=match["name"][:MAX_NAME],
        scope="cgroup" if words.startswith("Memory cgroup") else "node" if words else "",
        rss_bytes=sum(int(size) for size in sizes) * 1024 if sizes else None,
    )


def _task(line: KernelText) -> KernelEvent | None:
    match = _TASK.match(line.text)
    if match is None:
        return None
    limited = match["constraint"].endswith("MEMCG")  # cgroups may be called anything
    return event(
        line,
        KernelEventKind.OOM_KILL,
        pid=int(match["pid"]),
        process=match["name"][:MAX_NAME],
        scope="cgroup" if limited else "node",
        group=(match["limit"] or "") if limited else "",
    )


def crash(line: KernelText) -> KernelEvent | None:
    """The crash of a process, which is the only event whose line begins with the process's name; None for other lines."""
    match = next((found for one in _CRASHES if (found := one.match(line.text))), None)
    if match is None:
        return None
    return event(
        line, KernelEventKind.CRASH, pid=int(match["pid"]), process=match["name"][:MAX_NAME]
    )


def _hung(line: KernelText) -> KernelEvent | None:
    match = _HUNG.match(line.text)
    if match is None:
        return None
    return event(
        line,
        KernelEventKind.HUNG_TASK,
        pid=int(match["pid"]),
        process=match["name"][:MAX_NAME],
        seconds=int(match["seconds"]),
    )


def _group(line: KernelText) -> KernelEvent | None:
    match = _GROUP.match(line.text)
    return event(line, KernelEventKind.OOM_GROUP, group=match["group"]) if match else None


def oomd_kill(line: KernelText) -> KernelEvent | None:
    """The event of a cgroup that systemd-oomd killed, as it or systemd writes it into the kernel's log; None for another line."""
    match = _OOMD.match(line.text)
    if match is None:
        return None
    return event(line, KernelEventKind.OOMD_KILL, group=match["killed"] or match["unit"])


SIGNS = (
    LineReader("]: segfault at ", crash),
    LineReader("traps: ", crash),
    LineReader("due to hardware memory", crash),
    LineReader("oom-kill:", _task),
    LineReader("Kill", _killed),
    LineReader("blocked ", _hung),
    LineReader("memory.oom.group", _group),
    LineReader("systemd-oomd", oomd_kill),
)
