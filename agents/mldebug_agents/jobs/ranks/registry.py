"""Identifies processes: each is read once per program and then cached, because `/proc/PID/environ`
may block while a job hangs.

A new program (exec) is noticed by the addresses that every exec draws anew. So an environment is
read again exactly when it can have changed, and a process that overwrites it later (setproctitle)
keeps what it said at first.
"""

import errno
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from mldebug.core.redact import clean, redact_argv
from mldebug.jobs.known_issues.match import allowed
from mldebug.jobs.owners import Owner, in_turns
from mldebug.jobs.schedulers.job_arrays import array_id
from mldebug_agents.jobs.launcher import Launcher, NodeLauncher, PendingLaunch, RankClaim, script_of
from mldebug_agents.jobs.logs.nccl_files import debug_file
from mldebug_agents.jobs.ranks.libraries import (
    Libraries,
    Program,
    libraries,
    recorder_settings,
)
from mldebug_agents.jobs.ranks.ras_address import setting
from mldebug_agents.system import procfs
from mldebug_agents.system.host import Failure, Host, Paths
from mldebug_agents.system.process.containers import ContainerName, container_of, names_above
from mldebug_agents.system.procfs import Stat

MAX_BYTES = 8 << 20  # maps of a CUDA process: about 1 MB; environments: at most 6 MB
MAX_ARGUMENTS = 64
SETTLING = 30.0  # seconds of a new process in which every look asks whether PyTorch has come
SEARCHES = 2  # looks at the libraries of a process: the one that finds PyTorch, and the next
MOST_SEARCHES = 256  # processes that one look asks for PyTorch, owners in turns
MOST_OF_ONE = 64  # of one owner, where several have processes that claim a rank
SETTLED_EVERY = 60.0  # seconds between two such questions at most; before that a tenth of its age
UNCHANGED_EVERY = (
    600.0  # where its address space is as large as at the last one, so that it has loaded nothing
)

_OF_TORCH = (
    "pt_main_thread",
    "pt_elastic",
    "pt_data_worker",
)  # names PyTorch gives to main threads
_HELPERS = ("from multiprocessing.", "--multiprocessing-fork")
PROBES = "/mldebug_agents/probes/inside"  # the folder that the training environment's Python runs
_GONE = (errno.ENOENT, errno.ESRCH)

_Program = tuple[int, int, tuple[int, ...]]
"""What tells one exec of a process from the next: pid, start, and the addresses that every exec draws anew."""


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one process that is a Python program or a launcher."""

    stat: Stat
    python: bool = False
    launcher: bool = False
    claim: RankClaim | None = None
    pending: PendingLaunch | None = None  # of a launcher that starts its ranks when all nodes came
    argv: tuple[str, ...] = ()  # redacted
    script: str = ""
    helper: bool = False  # started by Python's multiprocessing: never a rank
    torch: bool = False
    uid: int = 0
    owner: int | None = None  # of `RankIdentity`
    refusal: str = ""  # why its environment could not be read
    stuck: bool = (
        False  # because the read has not come back, or there was no time for it: ask again
    )
    network: str = ""  # network and pid namespace
    namespace: str = ""
    namespace_pid: int | None = None
    nccl_ras: str = ""  # of `RankIdentity`
    array: str = ""  # of `RankIdentity`
    container: str = ""  # of root without one: its process namespace, where that is not the agent's
    pod: str = ""
    checked_at: float = 0.0
    checked_size: int = 0  # its address space (bytes) then; 0: not known
    settings: dict[str, str] = {}  # of `Program`
    recorder: dict[str, str] = {}  # of `Program`
    nccl_file: str = ""  # of `Program`
    libraries: Libraries = Libraries()
    searched: int = 0  # times that its libraries were looked for since PyTorch came

    @property
    def key(self) -> tuple[int, int]:
        """Pid and start time (clock ticks since boot), which together identify a process even if its pid is used again."""
        return self.stat.pid, self.stat.start_ticks

    @property
    def place(self) -> str:
        """The id of the pod in which the process runs, else of its container; "" for neither.

        Root in one container is not the same user as root in another.
        """
        return self.pod or self.container

    @property
    def owner_key(self) -> Owner:
        """The owner of this process: user id, and the pod or else container.

        What the node limits is shared out between owners.
        """
        return self.uid if self.owner is None else self.owner, self.place

    @property
    def forked(self) -> bool:
        """Whether the process was forked and never called exec, so that it has its parent's environment."""
        return bool(self.stat.flags & procfs.FORKED)

    @property
    def spawned(self) -> bool:
        """Whether Python's multiprocessing has started it by `spawn` to run a function, as it does
        DataLoader workers where fork is not used.
        """
        return self.helper and any("spawn_main" in word for word in self.argv)

    @property
    def problem(self) -> str:
        """Why the rank that the process claims is impossible, as a sentence; "" where it is not, or
        the process is a launcher.
        """
        return self.claim.problem if self.claim and not self.launcher else ""

    @property
    def program(self) -> Program:
        """The libraries and settings of the process, as one value."""
        return Program(libraries=self.libraries, settings=self.settings, recorder=self.recorder, nccl_file=self.nccl_file)  # fmt: skip

    @property
    def claims(self) -> bool:
        """Whether the process may be a rank: Python, no launcher, with a possible claim, and with
        PyTorch loaded where the claim alone is too weak.
        """
        claim = self.claim
        if not self.python or self.launcher or claim is None or claim.problem:
            return False
        return self.torch or not claim.needs_torch or claim.world_size > 1


class Registry:
    """Knows all processes of a node that matter for finding jobs, and reads each as seldom as possible."""

    def __init__(
        self, host: Host, reader: Paths, launchers: Sequence[Launcher], probes: bool = False
    ) -> None:
        """`probes`: the ranks of mldebug's own probes are found as well."""
        self._host = host
        self._reader = reader
        self._launchers = launchers
        self._probes = probes
        self._above = names_above(host.self_text("cgroup"))
        self._cache: dict[int, ProcessInfo] = {}
        self._waiting: dict[
            _Program, RankClaim | None
        ] = {}  # claims of programs that are not Python

    def look(self, stats: Mapping[int, Stat]) -> dict[int, ProcessInfo]:
        """The Python programs and launchers among these processes (zombies left out), by pid.

        New programs are read now.
        """
        living = [stat for stat in stats.values() if not _out_of_question(stat)]
        now = self._host.clock()
        programs = set(map(_program, living))
        self._waiting = {one: claim for one, claim in self._waiting.items() if one in programs}
        cached = {stat.pid: self._cached(stat) for stat in living}
        self._cache = {pid: process for pid, process in cached.items() if process is not None}
        self._identify([stat for stat in living if stat.pid not in self._cache])
        self._ask_for_torch(now)
        return {pid: p for pid, p in self._cache.items() if p.python or p.launcher}

    def claims_of(self, stats: Iterable[Stat]) -> dict[int, RankClaim]:
        """The claims, by pid, of processes that are not Python (yet) and may become a rank by exec.

        Each program is read once.
        """
        mine = {_program(stat): stat.pid for stat in stats}
        answers = self._read(
            (pid for program, pid in mine.items() if program not in self._waiting), ("environ",)
        )
        for program, pid in mine.items():
            environ = answers.get(pid, {}).get("environ")
            if isinstance(environ, bytes):
                self._waiting[program] = self._claim(procfs.parse_environ(environ), ())
        found = {pid: self._waiting.get(program) for program, pid in mine.items()}
        return {pid: claim for pid, claim in found.items() if claim and not claim.problem}

    def _cached(self, stat: Stat) -> ProcessInfo | None:
        """What is known of it, if it is still the same program."""
        cached = self._cache.get(stat.pid)
        if cached is None or cached.key != (stat.pid, stat.start_ticks) or cached.stuck:
            return None
        if cached.stat is stat:  # nothing of it has changed
            return cached
        if cached.stat.image != stat.image:
            return None
        if cached.stat.name != stat.name:
            if not stat.image[1]:  # addresses hidden from us: the name is all there is
                return None
            cached = msgspec.structs.replace(cached, checked_at=0.0, checked_size=0)
        return msgspec.structs.replace(cached, stat=stat)

    def _identify(self, fresh: list[Stat]) -> None:
        """Look at new programs: first what is free, then one batch through the reader."""
        ask: list[Stat] = []
        hidden: list[Stat] = []
        for stat in fresh:
            parent = self._parent_of_fork(stat)
            program = "" if parent else self._host.link(stat.pid, "exe")
            if parent is not None:
                self._keep(msgspec.structs.replace(parent, stat=stat))
            elif procfs.is_python(program) or named_python(stat.name):
                ask.append(stat)
            elif not program:
                hidden.append(stat)
            else:
                self._keep(ProcessInfo(stat=stat, launcher=self._launches(stat.name, ())))
        ask += self._pythons_among(hidden)
        ask = in_turns(ask, self._user)
        answers = self._read((stat.pid for stat in ask), ("environ", "cmdline"))
        for stat in ask:
            process = self._process(stat, answers.get(stat.pid, {}))
            if process is not None:
                self._keep(process)

    def _user(self, stat: Stat) -> int:
        owner = self._host.owner(stat.pid)
        return self._host.status(stat.pid).uid if owner is None else owner

    def _pythons_among(self, hidden: list[Stat]) -> list[Stat]:
        """Another user's processes: their command lines are all that we may read."""
        answers = self._read((stat.pid for stat in hidden), ("cmdline",))
        found = []
        for stat in hidden:
            cmdline = answers.get(stat.pid, {}).get("cmdline", b"")
            argv = procfs.parse_cmdline(cmdline) if isinstance(cmdline, bytes) else ()
            if argv and procfs.is_python(argv[0]):
                found.append(stat)
            elif argv:
                self._keep(ProcessInfo(stat=stat, launcher=self._launches(stat.name, ())))
        return found

    def _keep(self, process: ProcessInfo) -> None:
        self._cache[process.stat.pid] = process

    def _parent_of_fork(self, stat: Stat) -> ProcessInfo | None:
        """The known process it is a copy of, so that nothing needs to be read."""
        if not stat.flags & procfs.FORKED or not stat.image[1]:
            return None
        parent = self._cache.get(stat.ppid)
        return parent if parent is not None and parent.stat.image == stat.image else None

    def _read(
        self, pids: Iterable[int], names: tuple[str, ...]
    ) -> dict[int, dict[str, bytes | Failure]]:
        paths = {f"{self._host.proc}/{pid}/{name}": (pid, name) for pid in pids for name in names}
        if not paths:
            return {}
        found: dict[int, dict[str, bytes | Failure]] = {}
        for path, answer in self._reader.read_many(list(paths), max_bytes=MAX_BYTES).items():
            pid, name = paths[path]
            found.setdefault(pid, {})[name] = answer
        return found

    def _process(self, stat: Stat, answers: Mapping[str, bytes | Failure]) -> ProcessInfo | None:
        """Put together what was read; None while it is between two programs, or gone, or its user cannot be read."""
        environ, cmdline = answers.get("environ", b""), answers.get("cmdline", b"")
        argv = procfs.parse_cmdline(cmdline) if isinstance(cmdline, bytes) else ()
        failure = None if isinstance(environ, bytes) else environ
        known = procfs.parse_environ(environ) if isinstance(environ, bytes) else None
        variables = known or {}
        if (failure and failure.errno in _GONE) or not (environ or argv):
            return None
        python = named_python(stat.name) or (bool(argv) and procfs.is_python(argv[0]))
        python = python or procfs.is_python(self._host.link(stat.pid, "exe"))
        status = self._host.status(stat.pid) if python else procfs.ProcessStatus()
        if python and not status.uids:
            return None  # whose it is cannot be read now
        within = container_of(self._host.text(stat.pid, "cgroup"), self._above)
        if python and not status.uid and within == ContainerName():
            within = ContainerName(container=self._host.pid_namespace(stat.pid))
        return ProcessInfo(
            stat=stat,
            python=python,
            launcher=self._launches(stat.name, argv),
            claim=self._claim(known, argv) if python else None,
            pending=self._pending(variables, argv),
            settings=allowed(variables) if python else {},
            recorder=recorder_settings(variables) if python else {},
            nccl_file=debug_file(variables) if python else "",
            nccl_ras=setting(variables) if python else "",
            array=array_id(variables) if python else "",
            argv=redact_argv([clean(word) for word in argv[:MAX_ARGUMENTS]]),
            script=clean(script_of(argv), 80),
            helper=any(word.startswith(_HELPERS) for word in argv[1:]),
            uid=status.uid,
            owner=self._host.owner(stat.pid) if python else None,
            refusal=clean(failure.reason) if failure else "",
            stuck=(failure is not None and failure.stuck)
            or any(
                not isinstance(one, bytes) and one.errno == errno.EAGAIN
                for one in (environ, cmdline)
            ),
            network=self._host.link(stat.pid, "ns/net"),
            namespace=self._host.link(stat.pid, "ns/pid"),
            namespace_pid=status.pids[-1] if len(status.pids) > 1 else None,
            container=within.container,
            pod=within.pod,
        )

    def _launches(self, name: str, argv: tuple[str, ...]) -> bool:
        return any(launcher.is_launcher(name, argv) for launcher in self._launchers)

    def _pending(self, variables: Mapping[str, str], argv: tuple[str, ...]) -> PendingLaunch | None:
        """What a launcher is about to start, by its command line alone where its environment cannot be read."""
        mine = (
            launcher.pending(variables, argv)
            for launcher in self._launchers
            if isinstance(launcher, NodeLauncher) and launcher.is_launcher("", argv)
        )
        return next(mine, None)

    def _claim(
        self, variables: Mapping[str, str] | None, argv: tuple[str, ...]
    ) -> RankClaim | None:
        if variables is None or (not self._probes and measures(argv)):
            return None
        found = (launcher.identify(variables, argv) for launcher in self._launchers)
        return max(filter(None, found), key=lambda claim: claim.priority, default=None)

    def _ask_for_torch(self, now: float) -> None:
        waiting = sorted(
            (p for p in self._cache.values() if self._is_due(p, now)),
            key=lambda process: process.checked_at,
        )
        if not waiting:
            return
        owners = {process.owner_key for process in self._cache.values() if process.claim}
        most = MOST_OF_ONE if len(owners) > 1 else MOST_SEARCHES
        had: Counter[Owner] = Counter()
        due: dict[int, ProcessInfo] = {}
        for process in in_turns(waiting, lambda process: process.owner_key)[:MOST_SEARCHES]:
            had[process.owner_key] += 1
            if had[process.owner_key] <= most:
                due[process.stat.pid] = process
        for pid, answers in self._read(due, ("maps",)).items():
            maps = answers["maps"]
            if (
                not isinstance(maps, bytes) and maps.errno == errno.EAGAIN
            ):  # it comes first the next time
                continue
            found = isinstance(maps, bytes) and procfs.maps_torch(maps)
            one = msgspec.structs.replace(
                due[pid],
                torch=due[pid].torch or found,
                checked_at=now,
                checked_size=due[pid].stat.size if isinstance(maps, bytes) else 0,
            )
            if found and isinstance(maps, bytes):
                one = msgspec.structs.replace(one, libraries=libraries(maps))
            self._keep(msgspec.structs.replace(one, searched=one.searched + one.torch))

    def _is_due(self, process: ProcessInfo, now: float) -> bool:
        if process.claim is None or process.launcher:
            return False
        if process.torch:  # NCCL is mapped a moment after PyTorch, and by few after that
            return not process.libraries.nccl and process.searched < SEARCHES
        if process.checked_size and process.checked_size == process.stat.size:
            return now - process.checked_at >= UNCHANGED_EVERY
        age = now - self._host.started_at(process.stat.start_ticks)
        return age < SETTLING or now - process.checked_at >= min(SETTLED_EVERY, age / 10)


def _program(stat: Stat) -> _Program:
    return stat.pid, stat.start_ticks, stat.image


def _out_of_question(stat: Stat) -> bool:
    return bool(stat.flags & procfs.KERNEL_THREAD) or stat.state in "ZX"


def measures(argv: Sequence[str]) -> bool:
    """Whether this is the command line of one of mldebug's own probes.

    It is no training, and the command that started it watches it.
    """
    return any(word.endswith(PROBES) for word in argv[1:4])


def named_python(name: str) -> bool:
    return procfs.is_python(name) or name in _OF_TORCH
