"""One rank's exit with all that explains it: its status, its last error, lines of the kernel and of the launcher. Pure."""

from enum import StrEnum

import msgspec

from mldebug.diagnosis.exits.memory_text import memory_sentence
from mldebug.diagnosis.exits.model import (
    FAULTS,
    AttemptExit,
    KernelDeath,
    LauncherFailure,
    LauncherWords,
    RankError,
    RankExit,
    exit_code,
    exit_signal,
    lost_its_reader,
    merged,
    was_asked,
    was_sent,
    words_of_status,
)
from mldebug.diagnosis.exits.words.last_words import FAULT, is_out_of_memory, lost_worker

KILL, ABORT = 9, 6
# What Python's faulthandler calls the signals of a crash
CRASHES = {4: "Illegal instruction", 7: "Bus error", 8: "Floating point exception", 11: "Segmentation fault"}  # fmt: skip


class ExitKind(StrEnum):
    """The way in which one rank ended: by an error of its own, a signal, the launcher, …"""

    FAILED = "failed"  # by an exit code, a crash or an error of its own
    KILLED = "killed"  # by SIGKILL: from outside, or by the kernel
    ASKED = "asked"  # by a signal that asks
    PEER = "peer"  # because another rank was gone
    LEFT = "left"  # with exit code 0
    UNKNOWN = "unknown"


class ExplainedExit(msgspec.Struct, frozen=True, kw_only=True):
    """The exit of one rank with its explanation: last error, kernel line, launcher's words."""

    exit: RankExit
    kind: ExitKind
    node: str
    error: RankError | None = None
    death: KernelDeath | None = None
    worker: int | None = None  # the child whose death the kernel tells of
    out_of_memory: bool = False

    @property
    def proved(self) -> bool:
        """Whether an exit status or a kernel line shows how the rank ended, and not only text in a log."""
        return self.exit.status is not None or self.death is not None

    @property
    def own(self) -> bool:
        """Whether the failure is the rank's own: its last error blames no other rank, it crashed, or the kernel reports its end.

        SIGABRT without an error does not show that, as the watchdog of a collective ends every victim
        so; nor does a signal that somebody else sends.
        """
        crashed = exit_signal(self.exit.status) in FAULTS
        failed = self.error is not None and not (
            self.error.blames_peer or self.error.unclear or self.error.caught
        )
        return self.death is not None or failed or crashed

    def phrase(self) -> str:
        """How the rank ended, as the text after "rank 3 ": `exited with code 1: ValueError: bad shard 7`."""
        cause = _cause(self.error) if self.error and self.kind is not ExitKind.ASKED else ""
        if self.death is not None and self.death.kind == "out_of_memory":
            whose = f"lost its worker process {self.worker}" if self.worker else "was killed"
            return f"{whose} by the kernel's OOM killer"
        if self.out_of_memory and self.kind is ExitKind.KILLED:
            return "was killed by SIGKILL while the OOM killer worked in its cgroup"
        if self.kind is ExitKind.LEFT:
            return "left early with exit code 0"
        number = exit_signal(self.exit.status)
        if number is not None:
            return f"was {words_of_status(self.exit.status)}{cause}"
        code = exit_code(self.exit.status)
        return f"exited with code {code}{cause}" if code is not None else f"ended{cause}"


def _cause(error: RankError) -> str:
    """The error as a clause; a lack of device memory in short, as the evidence has the whole message."""
    memory = error.memory
    has_figures = memory is not None and (memory.by or memory.requested is not None)
    words = memory_sentence(memory) if memory and has_figures else error.error
    return f"; some lines before its last it printed {words}" if error.caught else f": {words}"


def explain_exits(attempt: AttemptExit) -> tuple[ExplainedExit, ...]:
    """Each exit of an attempt with its last error, kernel line and the launcher's words; in the order of the exits."""
    nodes = {one.rank: one.node for one in attempt.identities}
    return tuple(_explain(one, attempt, nodes.get(one.rank, "")) for one in attempt.exits)


def _explain(one: RankExit, attempt: AttemptExit, node: str) -> ExplainedExit:
    one = merged(one, _launcher_failure(one, attempt))
    error = attempt.words.errors.get(one.rank) or attempt.errors.get(one.rank)
    if exit_signal(one.status) not in (None, ABORT) and not _tells_of(error, one):
        # an older one that was caught: what ended it is a signal; but who lost a peer is killed by its parent, or kills itself
        error = error if error is not None and error.blames_peer and was_sent(one.status) else None
    deaths = {death.pid: death for death in attempt.deaths}
    worker = lost_worker(error.error) if error else None
    death, worker = deaths.get(one.pid), worker if worker in deaths else None
    if death is None and worker is not None:
        death = deaths[worker]
    killed = exit_signal(one.status) == KILL
    oom = death is not None and death.kind == "out_of_memory"
    hinted = bool(attempt.oom_kills or attempt.words.out_of_memory) and not attempt.kernel_readable
    oom = oom or (killed and hinted)  # whom it was, only a line of the kernel tells
    oom = oom or (error is not None and not error.caught and is_out_of_memory(error.error))
    way = _kind(one, error, death, _ended_by_launcher(one, attempt.words))
    return ExplainedExit(
        exit=one, kind=way, node=node, error=error, death=death, worker=worker, out_of_memory=oom
    )


def _tells_of(error: RankError | None, one: RankExit) -> bool:
    """Whether the error is what Python itself wrote about the signal that ended the rank."""
    number = exit_signal(one.status)
    fault = CRASHES.get(number) if number is not None else None
    return error is not None and fault is not None and error.error.startswith(f"{FAULT}{fault}")


def _launcher_failure(one: RankExit, attempt: AttemptExit) -> LauncherFailure | None:
    """What the launcher wrote about this process, or about this rank where it names no process; None where nothing."""
    failures = (*attempt.words.failures, *attempt.words.followers)
    return next((failure for failure in failures if is_about(failure, one)), None)


def is_about(failure: LauncherFailure, one: RankExit) -> bool:
    """Whether a launcher's statement is about this exit: by the pid, or by the rank where the statement has no pid."""
    return failure.pid == one.pid or (failure.pid is None and failure.rank == one.rank)


def _ended_by_launcher(one: RankExit, words: LauncherWords) -> bool:
    monitored = bool(words.monitor) and exit_signal(one.status) == KILL
    follows = any(is_about(failure, one) for failure in words.followers)
    return monitored or follows or one.pid in words.ended


def _kind(
    one: RankExit, error: RankError | None, death: KernelDeath | None, ended: bool
) -> ExitKind:
    if exit_signal(one.status) == KILL and death is None and ended:
        return ExitKind.ASKED
    if exit_signal(one.status) == KILL:
        return ExitKind.KILLED
    if exit_code(one.status) == 0:
        return ExitKind.LEFT
    if (error is not None and error.blames_peer) or (error is None and lost_its_reader(one.status)):
        return ExitKind.PEER
    if was_asked(one.status) or (one.status is None and ended):
        return ExitKind.ASKED
    if one.status is None and error is None:
        return ExitKind.UNKNOWN
    return ExitKind.FAILED
