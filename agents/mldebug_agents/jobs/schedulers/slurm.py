"""Slurm, by squeue and sinfo: as JSON, or as text where that is missing.

Both run in children with a deadline and a limit of output, in the C locale and in UTC, and without
the user's variables that change what they print. JSON that failed is tried again after an hour,
because each question costs Slurm's controller.
"""

import os
import pwd
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from mldebug.core.redact import safe_line
from mldebug.core.units import Duration
from mldebug.jobs.schedulers import slurm_json, slurm_text
from mldebug.jobs.schedulers.model import Queue, QueueError, QueueNode
from mldebug_agents.jobs.schedulers import Scheduler
from mldebug_agents.system.spawn import Completed, ProgramStarter

MAX_OUTPUT = 16 << 20  # bytes; JSON has about 4 KiB for a job, text 150 bytes
JSON_AGAIN = 3600.0  # seconds
CONFIG_AGAIN = 3600.0
T = TypeVar("T")
_PRIVATE = re.compile(rb"^PrivateData\s*=\s*\S*\b(?:jobs|all)\b", re.MULTILINE)
FALLS_BACK = ("failed", "unreadable", "too_large")  # what text may still mend


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options: how often Slurm is polled, and with which programs."""

    # between two questions for jobs; nodes are asked for at every fifth
    interval: Annotated[Duration, msgspec.Meta(ge=5)] = 60.0
    # for one question
    timeout: Annotated[Duration, msgspec.Meta(gt=0, le=60)] = 10.0
    # name of the node whose agent asks, * stands for anything; needed: the same file can be on all nodes
    only_on: tuple[str, ...] = ()
    # nodes that take no jobs of which somebody is told: names, * stands for anything; own: the agent's
    node_events: tuple[str, ...] = ("own",)
    # slurm.conf, where it is not at its usual place
    conf: Path | None = None
    squeue: str = "squeue"  # tells jobs; a name, or an absolute path
    sinfo: str = "sinfo"  # tells nodes
    scontrol: str = "scontrol"  # tells the cluster's own settings


class SlurmScheduler:
    """Lists the jobs of one Slurm cluster. Not safe to be used by several threads."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._no_json: dict[str, float] = {}  # program -> until when; monotonic
        self._private = False
        self._private_due = 0.0  # monotonic
        self._last: Queue | None = None  # one that no question for nodes was joined to

    def ask(self, starter: ProgramStarter, *, nodes: bool) -> Queue:
        """The jobs of Slurm. With `nodes` only the nodes that take no jobs are asked for, and the
        jobs of the last call are returned with them.

        Each costs the controller one call. Raises `QueueError` where the jobs cannot be read;
        failure to read nodes goes into `trouble`.
        """
        queue, self._last = self._last, None
        if not nodes or queue is None:
            queue = self._jobs(starter)
            self._last = msgspec.structs.replace(queue, only_of=self._only_of(queue, starter))
            return self._last
        try:
            return msgspec.structs.replace(queue, nodes=self._nodes(starter))
        except QueueError as error:
            return msgspec.structs.replace(queue, trouble=str(error))

    def _jobs(self, starter: ProgramStarter) -> Queue:
        program = self._options.squeue

        def by_text() -> Queue:
            mark = _mark()
            argv = (program, "--noheader", "--all", f"--format={slurm_text.job_format(mark)}")
            output = self._run(starter, argv).decode(errors="replace")
            return Queue(jobs=slurm_text.read_jobs(output, mark), by="text")

        return self._either(
            program, lambda: slurm_json.parse_queue(self._run(starter, (program, "--all", "--json"))), by_text
        )  # fmt: skip

    def _only_of(self, queue: Queue, starter: ProgramStarter) -> str:
        """The user whose jobs alone squeue shows, which it does without a word; one foreign job shows that it is not so."""
        me = _user(os.geteuid())
        if os.geteuid() == 0 or any(job.user not in ("", me) for job in queue.jobs):
            return ""
        if time.monotonic() >= self._private_due:
            self._private_due = time.monotonic() + CONFIG_AGAIN
            self._private = self._is_private(starter)
        return me if self._private else ""

    def _is_private(self, starter: ProgramStarter) -> bool:
        try:
            return bool(_PRIVATE.search(self._run(starter, (self._options.scontrol, "show", "config"))))  # fmt: skip
        except QueueError:
            return False  # as nearly everywhere

    def _nodes(self, starter: ProgramStarter) -> tuple[QueueNode, ...]:
        program = self._options.sinfo

        def by_text() -> tuple[QueueNode, ...]:
            mark = _mark()
            argv = (program, "--noheader", "--all", "--Node", f"--format={slurm_text.node_format(mark)}")  # fmt: skip
            return slurm_text.read_nodes(self._run(starter, argv).decode(errors="replace"), mark)

        return self._either(
            program, lambda: slurm_json.read_nodes(self._run(starter, (program, "--all", "--json"))), by_text
        )  # fmt: skip

    def _either(self, program: str, by_json: Callable[[], T], by_text: Callable[[], T]) -> T:
        """JSON, else text; a controller that does not answer is not asked a second time."""
        if time.monotonic() < self._no_json.get(program, 0.0):
            return by_text()
        try:
            return by_json()
        except QueueError as error:
            if error.reason not in FALLS_BACK:
                raise
        result = by_text()
        self._no_json[program] = time.monotonic() + JSON_AGAIN
        return result

    def _run(self, starter: ProgramStarter, argv: tuple[str, ...]) -> bytes:
        done = starter.run(
            argv, timeout=self._options.timeout, max_output=MAX_OUTPUT, env=self._environment()
        )
        _check(argv[0], done)
        return done.stdout

    def _environment(self) -> dict[str, str]:
        variables = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "TZ": "UTC"}
        conf = str(self._options.conf) if self._options.conf else os.environ.get("SLURM_CONF", "")
        return variables | ({"SLURM_CONF": conf} if conf else {})


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _mark() -> str:
    """No user can know it before naming a job."""
    return f"@{secrets.token_hex(8)}@"


def _check(program: str, done: Completed) -> None:
    if done.timed_out:
        raise QueueError("timeout", f"{program} had not answered after {done.seconds:.0f} s")
    if done.truncated:
        raise QueueError("too_large", f"{program} printed more than {MAX_OUTPUT >> 20} MiB")
    if done.error:
        raise QueueError("not_started", f"{program} could not be run: {done.error}")
    if done.returncode:
        message = safe_line(done.stderr.decode(errors="replace").strip(), 160)
        raise QueueError("failed", f"{program} failed with exit code {done.returncode}: {message}")


def create(options: Options) -> Scheduler:
    """Build the scheduler `slurm`: Slurm, by squeue and sinfo: as JSON, or as text where that is missing."""
    return SlurmScheduler(options)
