"""What Slurm itself says of a process and of a node. Only this may become part of a command that can harm.

A job may put any number into its environment; it cannot change slurmstepd's control group, or what scontrol says of a pid. Sources:
the layouts of `cgroup/v1` and `cgroup/v2` of Slurm 20.11 to 25.05; squeue(1), scontrol(1).
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

from mldebug.alerts.action_model import UnfitError
from mldebug.core.model import Job, RankIdentity
from mldebug_agents.alerts.action_runner.model import ProgramError, judged
from mldebug_agents.system.host import Host
from mldebug_agents.system.spawn import Completed, ProgramStarter

TIMEOUT, MAX_OUTPUT = 30.0, 1 << 20  # seconds, bytes: an array may have thousands of tasks
# anchored: below a user's own slice anybody may make a group of that name
_V2 = re.compile(
    r"0::/system\.slice/(?:[\w.-]{0,64}slurmstepd\.scope|slurmd\.service)/job_(\d{1,10})/"
)
_V1 = re.compile(r"\d+:[\w,=]*:/slurm(?:_[\w.-]{1,64})?/uid_\d+/job_(\d{1,10})/")
_PIDINFO = re.compile(r"Slurm (?:job id |JobId=)(\d{1,10}) ends at")
_NUMBER = re.compile(r"\d{1,10}(?:_\d{1,10})?")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_DRAINED = re.compile(r" State=\S*DRAIN")


def raw_of(job: Job, host: Host, starter: ProgramStarter) -> str:
    """The SLURM_JOB_ID of the job's ranks on this node, as Slurm knows them. Raises UnfitError where they differ or it is not
    certain, ProgramError where Slurm's programs fail.
    """
    raws = {_raw(rank, host, starter) for rank in job.ranks}
    if len(raws) != 1:
        raise UnfitError(f"the ranks here are of {len(raws)} Slurm jobs")
    return raws.pop()


def holding(raw: str, jobs: Iterable[Job], host: Host, starter: ProgramStarter) -> Iterator[Job]:
    """The jobs among `jobs` that belong to the Slurm job with id `raw`. Left out are jobs that have ended or are in no Slurm job.
    Raises ProgramError where a program of Slurm does not run at all.
    """
    for job in jobs:
        with suppress(UnfitError):
            try:
                found = raw_of(job, host, starter)
            except ProgramError as error:
                if error.code is None:
                    raise
                continue  # scontrol ends with 1 where the process is of no job
            if found == raw:
                yield job


def is_on(raw: str, node: str, starter: ProgramStarter) -> bool:
    """Whether the Slurm job with id `raw` runs on that node, according to squeue. Raises ProgramError."""
    done = ask(starter, "squeue", "--noheader", f"--jobs={raw}", f"--nodelist={node}", "--format=%A")  # fmt: skip
    return raw in done.stdout.decode("utf-8", "replace").split()


def number_of(raw: str, job: Job, starter: ProgramStarter) -> str:
    """Return the id to give to scancel for the running Slurm job `raw`; for a task of an array job the id of that task
    alone. Raises UnfitError where squeue does not list exactly one such job, or the job is not running or belongs to
    another user.
    """
    done = ask(
        starter, "squeue", "--noheader", f"--jobs={raw}", "--states=all", "--format=%A|%i|%U|%T"
    )
    rows = [line.strip().split("|") for line in done.stdout.decode("utf-8", "replace").splitlines()]
    mine = [row for row in rows if len(row) == 4 and row[0] == raw]
    if len(mine) != 1:
        raise UnfitError(f"squeue tells {len(mine)} jobs of number {raw}")
    _, number, uid, state = mine[0]
    if uid != str(job.uid):
        raise UnfitError(f"Slurm job {raw} is of user {uid[:12]}, and the ranks of {job.uid}")
    if state != "RUNNING":
        raise UnfitError(f"Slurm job {raw} is {state[:20]} and not running")
    if not _NUMBER.fullmatch(number):
        raise UnfitError(f"Slurm job {raw} has a number that is not understood")
    return number


def node_of(name: str, starter: ProgramStarter) -> str:
    """The name by which Slurm knows that node. Raises UnfitError where Slurm does not know it, or it is drained already."""
    for candidate in dict.fromkeys((name, name.partition(".")[0])):
        if not _NODE.fullmatch(candidate):
            raise UnfitError("the node's name is none that Slurm may have")
        record = _node(candidate, starter)
        if _DRAINED.search(record):
            raise UnfitError(f"{candidate} is drained already")
        if record:
            return candidate
    raise UnfitError(f"Slurm knows no node {name}")


def ask(starter: ProgramStarter, program: str, *argv: str) -> Completed:
    """Run one of Slurm's programs and return its output. Raises ProgramError where it does not end with 0."""
    kept = {name: os.environ[name] for name in ("PATH", "SLURM_CONF") if name in os.environ}
    done = starter.run(
        (program, *argv), timeout=TIMEOUT, max_output=MAX_OUTPUT, env=kept | {"LC_ALL": "C"}
    )
    return judged(done, program)


def _raw(rank: RankIdentity, host: Host, starter: ProgramStarter) -> str:
    groups = host.text(rank.pid, "cgroup")
    found = {m[1] for line in groups.split("\n") if (m := _V2.match(line) or _V1.match(line))}
    if not found:
        text = ask(starter, "scontrol", "pidinfo", str(rank.pid)).stdout.decode("utf-8", "replace")
        found = {m[1] for line in text.splitlines() if (m := _PIDINFO.match(line))}
    known = host.brief(rank.pid)
    if known is None or known.start_ticks != rank.start_ticks:
        raise UnfitError(f"rank {rank.rank} (pid {rank.pid}) is gone")
    if len(found) != 1:
        raise UnfitError(f"Slurm does not say of which job rank {rank.rank} (pid {rank.pid}) is")
    return found.pop()


def _node(name: str, starter: ProgramStarter) -> str:
    """Its record; "" where that is of none, or of several."""
    try:
        done = ask(starter, "scontrol", "--oneliner", "show", "node", name)
    except ProgramError as error:
        if error.code is None:
            raise
        return ""  # it ends with 1 where it knows none of that name
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    mine = [line for line in lines if line.startswith(f"NodeName={name} ")]
    return mine[0] if len(lines) == 1 and mine else ""
