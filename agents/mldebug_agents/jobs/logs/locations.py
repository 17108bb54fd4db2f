"""Finds where the output of a rank goes: to files of its own, or through pipes to a process that writes a file.

Only links below /proc are read, nothing is opened. Each place found is a `LogFile`, named by a
descriptor of the process that writes it, so renaming and deleting the file do not matter;
`mldebug_agents.jobs.logs.follower` reads it.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

from mldebug.core.model import OpenFile, ProcessState
from mldebug.core.redact import clean
from mldebug.jobs.logs.charts.kinds import PARSERS, event_kind
from mldebug_agents.jobs.logs.pipes import PipeReaders, UnreadPipes, connected_sockets
from mldebug_agents.system.child.job_paths import NO_RIGHTS, Rights
from mldebug_agents.system.host import Host

LOG_NAMES = (".log", ".out", ".err", ".txt", ".jsonl")
MAX_PLACES = 4  # for one rank
MAX_HOPS = 3  # pipes in a row
_STREAMS = {1: "stdout", 2: "stderr"}
_COPIERS = ("tee", "slurmstepd", "srun", "rotatelogs", "svlogd", "multilog", "cat")
_RUNTIMES = ("containerd", "dockerd", "conmon", "crio")  # they write the logs of many containers
_DAEMON_LOG = re.compile(r"^/var/log/(?!pods/|containers/)|/slurm(?:ctl|step)?d[^/]*\.log$")
_CONTAINER_NAMES = re.compile(
    r"pod([0-9a-f]{8}[-_][0-9a-f_-]{27})|(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])"
)
_INODE = re.compile(r"^ino:\s*(\d+)", re.MULTILINE)
_WHAT = {"tty": "a terminal", "socket": "a socket", "fifo": "a FIFO", "pipe": "a pipe"}


class LogFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file to which output is written, as a descriptor of its writer.

    kind: stdout, stderr (of the rank); reader (a process that reads the rank's pipe); container
    (the log that a container runtime writes); launcher; named (a file of the rank with the name of
    a log); tensorboard, wandb, csv (a framework's charts); growth: only its size tells something,
    the weakest sign of progress.
    """

    path: str  # /proc/PID/fd/N: what a `Reader` opens
    target: str  # the file's name in the eyes of its writer
    rights: Rights  # of the rank: what its user may not read is not read
    pid: int
    kind: str
    inode: int = 0  # 0: an old kernel that does not tell
    mount: str = ""
    fstype: str = ""
    via: str = ""  # "tee (pid 12)" for kind reader and container
    start_ticks: int = 0  # of the process with that pid

    @property
    def parsed(self) -> bool:
        """Whether the file may hold records of training."""
        return self.kind != "growth"

    @property
    def charts(self) -> bool:
        """Whether the file is one into which a framework writes charts, and not text for people."""
        return self.kind in PARSERS


class RankLogs(msgspec.Struct, frozen=True, kw_only=True):
    """The log files of one rank, the most informative first. `reason`: why there are none."""

    places: tuple[LogFile, ...] = ()
    reason: str = ""


class LogFinder:
    """Finds log files. It caches pipes and their readers, so make a new one for each look.

    `unread` lives longer: a pipe whose reader was not found is not searched for at each look.
    """

    def __init__(self, host: Host, unread: UnreadPipes | None = None) -> None:
        self._host = host
        self._processes = PipeReaders(host, unread)

    def find(
        self,
        rank: ProcessState,
        launchers: Sequence[ProcessState] = (),
        rights: Rights | None = None,
    ) -> RankLogs:
        """Where the output of a rank goes. `launchers`: processes whose output counts where the
        rank has none of its own.

        `rights`: with whose rights the files are read; None: those of the process `rank`.
        """
        state = rank if rank.files else self._processes.state(rank.pid)
        if state is None or not state.files:
            return RankLogs(reason="no log found: its file descriptors may not be read")
        reasons: list[str] = []
        places = list(self._streams(state, reasons))
        places += [self._place(state, file, "named") for file in _named(state)][:2]
        if not places:
            places += [
                self._place(launcher, file, "launcher")
                for launcher in launchers
                for file in _written(launcher)
                if file.fd in _STREAMS
            ]
        places += [self._place(state, file, kind) for file, kind in _events(state)][:1]
        distinct: dict[tuple[int, str], LogFile] = {}
        for place in places:
            distinct.setdefault((place.inode, place.target), place)
        if rights is None:
            rights = self._host.rights.of_process(state.pid, state.start_ticks)
        kept = tuple(
            msgspec.structs.replace(
                place,
                rights=rights if place.rights == NO_RIGHTS else place.rights,
            )
            for place in list(distinct.values())[:MAX_PLACES]
        )
        if any(place.parsed and not place.charts for place in kept):
            return RankLogs(places=kept)
        return RankLogs(
            places=kept, reason=f"no log found: {'; '.join(reasons) or 'no output is open'}"
        )

    def open_file(self, state: ProcessState, wanted: Callable[[str], bool]) -> LogFile | None:
        """The first file that a process writes and whose name `wanted` accepts, to be read with the
        rights of its user; None without one.
        """
        found = next((file for file in _written(state) if wanted(file.target)), None)
        if found is None:
            return None
        rights = self._host.rights.of_process(state.pid, state.start_ticks)
        return msgspec.structs.replace(self._place(state, found, "named"), rights=rights)

    # --- the two streams ---------------------------------------------------------------------------

    def _streams(self, state: ProcessState, reasons: list[str]) -> Iterator[LogFile]:
        targets: set[str] = set()
        for file in state.files:
            name = _STREAMS.get(file.fd)
            if name is None or file.target in targets:
                continue
            targets.add(file.target)
            if file.kind in ("file", "deleted"):
                yield self._place(state, file, name)
            elif file.kind == "pipe":
                yield from self._behind(file.target, state, f"{name} is a pipe", reasons)
            else:
                target = clean(file.target, 60)
                what = _WHAT.get(file.kind)
                reasons.append(f"{name} is {f'{what} ({target})' if what else target}")

    def _behind(
        self, pipe: str, rank: ProcessState, words: str, reasons: list[str], hops: int = 1
    ) -> Iterator[LogFile]:
        """Follow a pipe to the files of those who read it, over `MAX_HOPS` pipes."""
        pids = self._processes.readers_of(pipe, rank)
        readers = [state for pid in pids if (state := self._processes.state(pid))]
        if not readers:
            reasons.append(f"{words} that no process we may look at reads")
        for state in readers:
            via = f"{clean(state.name, 40)} (pid {state.pid})"
            places = list(self._outputs(state, rank, via))
            yield from places
            onward = [file.target for file in state.files if file.fd == 1 and file.kind == "pipe"]
            if onward and onward[0] != pipe and hops < MAX_HOPS:
                further = f"{words} read by {via}, whose stdout is a pipe"
                yield from self._behind(onward[0], rank, further, reasons, hops + 1)
            elif not places:
                reasons.append(f"{words} read by {via}, which writes no log file")

    def _outputs(self, state: ProcessState, rank: ProcessState, via: str) -> Iterator[LogFile]:
        """Yield the files into which a reader of a rank's pipe puts what it reads."""
        if state.name.startswith(_RUNTIMES):
            yield from self._of_runtime(rank, via)
            return
        files = [file for file in _written(state) if not _DAEMON_LOG.search(file.target)]
        copier = state.name in _COPIERS
        if copier:  # its stderr is for its own complaints
            files = [file for file in files if file.fd != 2]
        wanted = [file for file in files if file.fd in _STREAMS]
        if copier or not wanted:
            wanted += [file for file in files if copier or file.target.endswith(LOG_NAMES)]
        for file in wanted[:MAX_PLACES]:
            yield self._place(state, file, "reader", via)
        if not wanted and state.name == "slurmstepd":  # it hands the output to srun over a socket
            for other in self._sruns(state, rank):
                yield from self._outputs(other, rank, f"{via}, srun (pid {other.pid})")

    def _sruns(self, step: ProcessState, rank: ProcessState) -> list[ProcessState]:
        """The srun at the other end of a slurmstepd's connection; where none is to be seen, the user's only one."""
        found = self._processes.named("srun", rank.uid, rank)
        if len(found) < 2:
            return found
        linked = connected_sockets(
            self._host.text(step.pid, f"net/{table}") for table in ("tcp", "tcp6")
        )
        wanted = {linked[file.target] for file in step.files if file.target in linked}
        mine = [one for one in found if any(file.target in wanted for file in one.files)]
        if mine:
            return mine
        outputs = {tuple(file.target for file in _written(one)) for one in found}
        return found if len(outputs) == 1 else []  # another job's log is worse than none

    def _of_runtime(self, rank: ProcessState, via: str) -> Iterator[LogFile]:
        """Yield the log of the rank's container, which belongs to the runtime: nobody but root can give a process such a name.

        Below user.slice users name their own control groups, and below a container its root does: the outermost name counts,
        but for a runtime that runs in that container.
        """
        cgroup = self._host.text(rank.pid, "cgroup")
        trusted = (rank.uid,) if "/user.slice/" in cgroup else (0, rank.uid)
        for runtime in _RUNTIMES:
            for state in self._processes.named(runtime, None, rank):
                marks = self._marks(cgroup, state.pid)
                for file in _written(state) if state.uid in trusted else ():
                    if file.target.endswith(".log") and any(mark in file.target for mark in marks):
                        place = self._place(state, file, "container", via)
                        if state.uid == 0:  # root alone may read it, and the kernel calls it so
                            named = Rights(-1, name=file.target)
                            place = msgspec.structs.replace(place, rights=named)
                        yield place

    def _marks(self, cgroup: str, runtime: int) -> tuple[str, ...]:
        """As `container_marks`, of the runtime with this pid. One in a container without a name may be anybody's: its root is root."""
        above = self._host.text(runtime, "cgroup")
        if not _names(above) and self._host.pid_namespace(runtime):
            return ()
        return container_marks(cgroup, above)

    def _place(self, state: ProcessState, file: OpenFile, kind: str, via: str = "") -> LogFile:
        inode = _INODE.search(self._host.text(state.pid, f"fdinfo/{file.fd}"))
        return LogFile(
            path=f"{self._host.proc}/{state.pid}/fd/{file.fd}",
            target=file.target,
            rights=NO_RIGHTS,  # until it is known whose it is
            pid=state.pid,
            kind=kind,
            inode=int(inode[1]) if inode else 0,
            mount=file.mount,
            fstype=file.fstype,
            via=via,
            start_ticks=state.start_ticks,
        )


def container_marks(cgroup: str, runtime: str = "") -> tuple[str, ...]:
    """Texts by which the paths of a container's log files are known: its pod's uid and its own id.
    Empty where that is not certain.

    `cgroup`: its /proc/PID/cgroup; `runtime`: the same of the runtime that started it, whose own
    names (it may run in a container itself) are left out.
    """
    above = frozenset(_names(runtime))
    names = [name for name in _names(cgroup) if name not in above]
    if above and not above.issubset(_names(cgroup)):
        return ()
    pods = [name for name in names if "-" in name][:1]
    return (*pods, *[name for name in names if "-" not in name][:1])


def _names(cgroup: str) -> list[str]:
    """The pods and containers in a text of /proc/PID/cgroup, the outermost first."""
    found = _CONTAINER_NAMES.finditer(cgroup)
    return list(dict.fromkeys(it[1].replace("_", "-") if it[1] else it[2][:12] for it in found))


def _written(state: ProcessState) -> list[OpenFile]:
    return [file for file in state.files if file.kind in ("file", "deleted") and "w" in file.mode]


def _named(state: ProcessState) -> list[OpenFile]:
    return [
        file
        for file in _written(state)
        if file.fd not in _STREAMS and file.target.removesuffix(" (deleted)").endswith(LOG_NAMES)
    ]


def _events(state: ProcessState) -> list[tuple[OpenFile, str]]:
    """Files for charts that it holds open; most frameworks open theirs anew for each line (`event_files`)."""
    kinds = ((file, event_kind(file.target.rpartition("/")[2])) for file in _written(state))
    return [(file, kind) for file, kind in kinds if kind]
