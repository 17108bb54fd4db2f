"""By srun, inside the job itself: one more job step on each of its nodes, beside the one that hangs."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from mldebug.core.errors import MldebugError, ToolError, UsageError
from mldebug.core.model import QueriedNode
from mldebug.core.ranksets import fold_nodes, unfold_nodes
from mldebug.core.redact import safe_line
from mldebug_agents.cluster.fanout.hints import way_out
from mldebug_agents.cluster.fanout.messages import FanoutOrder, FanoutPlan, FanoutRequest, Transport
from mldebug_agents.system.spawn import ProgramStarter

QUERY = 20.0  # seconds for squeue and sinfo
MAX_OUTPUT = 4 << 20
# of the environment of whoever asks: what a Python may need to start there, nothing that could be a secret
TRAVELS = "PATH,HOME,USER,LOGNAME,SHELL,LANG,LC_ALL,TMPDIR,LD_LIBRARY_PATH,PYTHONPATH,VIRTUAL_ENV,CONDA_PREFIX"
DOWN = re.compile(r"down|fail|powered_down|powering|reboot|unknown", re.IGNORECASE)
_JOB = re.compile(r"[0-9]{1,12}(?:[_+][0-9]{1,10})?", re.ASCII)
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}", re.ASCII)
ASK_SLURM = "`scontrol ping` says whether the controller answers; is this a node of the cluster?"
_LABEL = re.compile(r"^ *([0-9]{1,6}): (.*)")
_LOST = re.compile(r"Task launch for StepId=\S{1,40} failed on node (\S+): (.{1,200})")
_SILENT = re.compile(r"timed out|connection failure|No route to host|unreachable", re.IGNORECASE)
_WAITS = re.compile(r"step creation (?:temporarily|still) disabled")
_ENDED = re.compile(
    r"srun: error: (\S+): tasks? ([0-9,\-]{1,2000}): (Exited with exit code \d+|\S.{0,200})"
)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the transport `slurm`: how srun is called."""

    # of every step; --gres=gpu:0, or it would wait for the GPUs that the job holds
    srun: tuple[str, ...] = ("srun", "--overlap", "--gres=gpu:0")


class SlurmTransport:
    """Reaches the nodes of one Slurm job by one srun."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def plan(self, wanted: FanoutRequest, starter: ProgramStarter) -> FanoutPlan:
        """The plan: one job step on all nodes of the job that are up. Raises MldebugError where none is."""
        job, nodes = _job(starter, wanted.target)
        absent = tuple(_down(starter, nodes))
        up = [name for name in nodes if name not in {node.name for node in absent}]
        if not up:
            raise MldebugError(
                f"no node of job {job} is up: {absent[0].reason}", "sinfo --Node --long"
            )
        limit = f"{wanted.timeout:g}"
        argv = (
            # ends srun by a signal that it hands on; what it has started ends by itself, too
            *("exec", "timeout", "--foreground", "-k", "10", limit, *self._options.srun),
            *(f"--jobid={job}", f"--nodelist={fold_nodes(up)}", f"--nodes={len(up)}"),
            *(f"--ntasks={len(up)}", "--ntasks-per-node=1", "--label", "--kill-on-bad-exit=0"),
            *("--job-name=mldebug", "--mpi=none", "--cpu-bind=none", "--input=none"),
            f"--export={TRAVELS}",
            *("timeout", "-k", "5", limit, wanted.python, "-m", "mldebug", *wanted.arguments),
            *("--slurm-job", job),
        )
        command = _without_a_step(shlex.join(argv))
        order = FanoutOrder(command=command, timeout=wanted.timeout, grace=12.0)
        return FanoutPlan(order=order, nodes=nodes, absent=absent, listed_by="Slurm")

    def explain(self, plan: FanoutPlan, errors: Iterable[str]) -> Mapping[str, QueriedNode]:
        """Which nodes failed and why, from srun's stderr: it labels each line with a task's number, and names failed tasks
        at the end.
        """
        absent = {node.name for node in plan.absent}
        present = [name for name in plan.nodes if name not in absent]
        errors_of = _SrunErrors(errors)
        return {
            name: QueriedNode(
                name=name, state=errors_of.state(name), reason=reason, way_out=way_out(reason)
            )
            for number, name in enumerate(present)
            if (reason := errors_of.why(name, number))
        }

    def ended(self, node: str, code: int, error: str) -> QueriedNode:
        """The node, marked as one that could not answer because of this error. The exit code is ignored, since one srun
        runs the commands of all nodes.
        """
        return QueriedNode(name=node, state="unable", reason=error)


class _SrunErrors:
    """The lines of srun's stderr, sorted."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._by_task: dict[int, str] = {}
        self._ends: dict[str, tuple[set[int], str]] = {}
        self._lost: dict[str, str] = {}
        self._of_all = ""
        for line in lines:
            self._sort(safe_line(line, 300))

    def _sort(self, line: str) -> None:
        if found := _LABEL.match(line):
            self._by_task[int(found[1])] = found[2]
        elif found := _ENDED.match(line):
            for name in _unfolded(found[1]):
                self._ends[name] = (set(_numbers(found[2])), found[3])
        elif found := _LOST.search(line):
            self._lost |= dict.fromkeys(
                _unfolded(found[1]), f"srun could not start there: {found[2]}"
            )
        elif not _WAITS.search(self._of_all) and ("error" in line or not self._of_all):
            self._of_all = line

    def why(self, name: str, number: int) -> str:
        """Of one node: its own last line, else how its task ended, else what srun said of all."""
        tasks, end = self._ends.get(name, ({number}, ""))
        own = next((self._by_task[task] for task in sorted(tasks) if task in self._by_task), "")
        return own or self._lost.get(name) or end or self._of_all

    def state(self, name: str) -> Literal["silent", "unable"]:
        """A node whose slurmd does not answer may be down, though Slurm has not seen it yet."""
        return "silent" if _SILENT.search(self._lost.get(name, "")) else "unable"


def _unfolded(nodes: str) -> Sequence[str]:
    try:
        return unfold_nodes(nodes)
    except UsageError:
        return ()


def _numbers(tasks: str) -> Iterator[int]:
    for part in tasks.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            yield from range(int(first), min(int(last or first), int(first) + 65_536) + 1)


def _without_a_step(command: str) -> str:
    """Who is inside a job already has its variables set, which are not meant for this one."""
    return f"for v in $(env | sed -n 's/^\\(SLURM_[A-Z0-9_]*\\)=.*/\\1/p'); do [ $v = SLURM_CONF ] || unset $v; done; {command}"


# --- what Slurm knows ------------------------------------------------------------------------------


def _job(starter: ProgramStarter, wanted: str) -> tuple[str, tuple[str, ...]]:
    """The number of a running job and its nodes; UsageError where there is none."""
    if not _JOB.fullmatch(wanted):
        raise UsageError(f"{wanted[:40]!r} is no job id of Slurm", "squeue --me")
    rows = _ask(starter, "squeue", "--noheader", f"--jobs={wanted}", "--format=%A|%T|%N")
    jobs = [row.split("|") for row in rows if row.count("|") == 2]
    if not jobs:
        raise UsageError(f"Slurm knows no job {wanted} that runs", "squeue --me")
    running = [job for job in jobs if job[2]]
    if not running:
        raise UsageError(f"job {wanted} is {jobs[0][1].lower()}: it has no nodes", "squeue --me")
    if len(running) > 1:
        names = ", ".join(job[0] for job in running[:4])
        raise UsageError(
            f"job {wanted} stands for {len(running)} jobs: {names}", "name one of them"
        )
    return running[0][0], unfold_nodes(running[0][2])


def _down(starter: ProgramStarter, nodes: tuple[str, ...]) -> Iterator[QueriedNode]:
    """The nodes that Slurm itself takes for dead: `*` after a state means that it does not answer."""
    rows = _ask(
        starter,
        "sinfo",
        "--noheader",
        "--Node",
        f"--nodes={fold_nodes(nodes)}",
        "--format=%N|%T|%H|%E",
    )
    states = {row.split("|", 1)[0]: row.split("|", 3)[1:] for row in rows if row.count("|") >= 3}
    for name in nodes:
        state, since, why = states.get(name, ("", "", ""))
        if state.endswith("*") or DOWN.match(state):
            yield QueriedNode(name=name, state="down", reason=_down_reason(state, since, why))


def _down_reason(state: str, since: str, why: str) -> str:
    """Slurm's own words, and the moment at which it has marked the node: after that nobody has seen it."""
    words = f"Slurm says that it is {safe_line(state.rstrip('*'), 40)}"
    if _MOMENT.fullmatch(since):
        words += f" since {since.replace('T', ' ')}"
    if state.endswith("*"):
        words += ", and does not answer"
    return words if why in ("", "none") else f"{words}: {safe_line(why, 120)}"


def _ask(starter: ProgramStarter, *argv: str) -> list[str]:
    done = starter.run(argv, timeout=QUERY, max_output=MAX_OUTPUT)
    if done.timed_out:
        raise MldebugError(f"{argv[0]} has not answered in {QUERY:g} s", ASK_SLURM)
    if done.error:
        raise ToolError(f"{argv[0]} cannot be run: {done.error}", "run it where Slurm is installed")
    if done.returncode != 0:
        last_line = safe_line(done.stderr.decode(errors="replace").strip().rpartition("\n")[2], 300)
        if "Invalid job id" in last_line:
            raise UsageError(f"Slurm knows no such job: {last_line}", "squeue --me")
        raise MldebugError(f"{argv[0]} failed: {last_line}", ASK_SLURM)
    return done.stdout.decode(errors="replace").splitlines()


def create(options: Options) -> Transport:
    """Build the transport `slurm`: by srun, inside the job itself: one more job step on each of its nodes, beside the one that hangs."""
    return SlurmTransport(options)
