"""Find the bad GPU, link or node: pairs in a tournament."""

import click
import msgspec

from mldebug.core.errors import ExitCode, FailedCheckError, UsageError
from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug.probes.isolate import Isolation, isolate, isolation_lines, progress_lines
from mldebug.probes.pairs import PairLimits, Trial
from mldebug_agents.probes.child import ChildExit, Event
from mldebug_agents.probes.environment import checked_variables
from mldebug_agents.probes.measurement import free_port
from mldebug_agents.probes.options import Number, probe_options, probe_settings, seconds, size
from mldebug_agents.probes.session import ProbeSettings, Session, check_ranks, open_session

JOIN = 120.0  # seconds in which the other nodes must come, and at most half of --duration
STEP = {"cuda": 60.0, "cpu": 30.0}  # seconds: NCCL needs some of them to begin
SIZE = {"cuda": 256 << 20, "cpu": 8 << 20}
REPEATS = 20


class Participation(msgspec.Struct, frozen=True, kw_only=True):
    """This node's part in one run of `mldebug probe isolate`: how many nodes take part, which one this is, and where they meet.
    `local_ranks`: ranks on this node; 0: one for each GPU, or 4 without GPUs. `each`: compare GPUs or nodes.
    """

    nodes: int = 1
    node: int = 0
    address: str = ""
    port: int = 0
    local_ranks: int = 0
    each: str = ""

    def __post_init__(self) -> None:
        """UsageError for what cannot be."""
        if not 0 <= self.node < self.nodes:
            raise UsageError(f"--node {self.node}: nodes are numbered from 0 to {self.nodes - 1}")
        if self.nodes > 1 and not self.address:
            raise UsageError(f"{self.nodes} nodes must meet somewhere", "--rendezvous HOST:PORT, where HOST is node 0")  # fmt: skip


class IsolateProgress(msgspec.Struct):
    """What the events of `mldebug probe isolate` have reported so far."""

    members: list[str]
    absent: list[int]
    trials: list[Trial]
    untried: int = 0  # groups for which there was no time
    join: float = JOIN  # seconds in which nodes could come

    def on_event(self, event: Event) -> None:
        """Handle one event of the probe, and print what it reports to stderr."""
        if event["event"] == "members":
            self.members, self.absent = event["names"], event["absent"]
            click.echo(clean(f"members: {', '.join(self.members)}", 2000), err=True)
        if event["event"] == "untried":
            self.untried += event["groups"]
        if event["event"] == "step":
            trials = msgspec.convert(event["trials"], list[Trial])
            self.trials += trials
            for line in progress_lines(event["number"], trials):
                click.echo(clean(line, 300), err=True)


class IsolateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `mldebug probe isolate` with all its trials, as `--json` prints it."""

    members: list[str]
    answer: Isolation
    ended: str  # "" or why it ended before everything was tried
    trials: list[Trial]


@click.command("isolate")
@click.option(
    "--nproc",
    type=click.IntRange(1, 1024),
    help="Ranks of this node; all GPUs without it, 4 on CPUs.",
)
@click.option("--nodes", type=click.IntRange(1, 4096), default=1, help="How many nodes take part.")
@click.option(
    "--node",
    type=click.IntRange(0),
    default=0,
    help="The number of this node; node 0 tells the answer.",
)
@click.option(
    "--rendezvous",
    metavar="HOST:PORT",
    default="",
    help="Where the nodes meet: node 0 and a free port.",
)
@click.option(
    "--each",
    type=click.Choice(["gpu", "node"]),
    help="What is told apart; nodes where there are several.",
)
@click.option("--size", "size_", metavar="SIZE", help="Payload: 256MiB on GPUs, 8MiB on CPUs.")
@click.option(
    "--step", metavar="DURATION", help="Longest time of each try: 60s on GPUs, 30s on CPUs."
)
@click.option(
    "--slow-below",
    type=Number(0.01, 0.79),
    default=0.5,
    show_default=True,
    help="A pair below this share of the best one is bad.",
)
@click.option(
    "--expect", metavar="SIZE", help="Bandwidth in a second that each pair must reach: 40GB."
)
@click.option("--json", "as_json", is_flag=True, help="Print an object with all tries.")
@probe_options
def command(
    nproc: int | None, nodes: int, node: int, rendezvous: str, each: str | None, size_: str | None,
    step: str | None, slow_below: float, expect: str | None, as_json: bool,
    python: str | None, device: str, duration: str, beside_jobs: bool,
) -> int:  # fmt: skip
    """Find the bad GPU, link or node.

    Each member works alone, all together, then every two of them, in rounds; doubtful pairs once more by themselves.
    Every try has a deadline of its own. Type the same on each node, with its number. Exit code 1: somebody is bad, or it
    cannot be told who.
    """
    host, _, port = rendezvous.rpartition(":")
    if rendezvous and not (host and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(
            f"--rendezvous {rendezvous!r} is no HOST:PORT", "write it like node0:29511"
        )
    place = Participation(
        nodes=nodes,
        node=node,
        address=host.strip("[]"),
        port=int(port or 0),
        local_ranks=nproc or 0,
        each=each or "",
    )
    limits = PairLimits(slow=slow_below, floor=None if expect is None else size(expect, "--expect"))
    payload = None if size_ is None else size(size_, "--size")
    longest = None if step is None else seconds(step, "--step")
    settings = probe_settings(python, device, duration, beside_jobs)
    progress = IsolateProgress([], [], [], join=min(JOIN, settings.duration / 2))
    try:
        ended = _run(settings, place, payload, longest, limits, progress)
    except (KeyboardInterrupt, SystemExit):
        if progress.trials and not node:
            _answer(
                progress,
                limits,
                ChildExit(outcome="cancelled", reason="it was interrupted"),
                as_json,
            )
        raise
    if node:
        return _aside(ended)
    return _answer(progress, limits, ended, as_json)


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug probe isolate`: find the bad GPU, link or node: pairs in a tournament."""
    return command


def _run(
    settings: ProbeSettings, place: Participation, payload: int | None, longest: float | None, limits: PairLimits, progress: IsolateProgress
) -> ChildExit:  # fmt: skip
    for name, value in checked_variables().items():
        click.echo(clean(f"  {name}={value}", 200), err=True)
    with open_session(settings) as session:
        local_ranks = place.local_ranks or (session.facts.gpus if session.device == "cuda" else 4)
        check_ranks(session, local_ranks)
        order = _order(session, place, local_ranks, limits)
        order["join"] = progress.join
        order["bytes"] = SIZE[session.device] if payload is None else payload
        order["step"] = step = STEP[session.device] if longest is None else longest
        if place.node == 0 and step >= settings.duration:
            problem = f"--duration {settings.duration:g}s leaves no time for a try of {step:g} s"
            raise UsageError(problem, "a longer --duration, or --step 5s")
        return session.run("isolate", order, progress.on_event)


def _order(
    session: Session, place: Participation, local_ranks: int, limits: PairLimits
) -> dict[str, object]:
    alone = place.nodes == 1
    each = place.each or ("gpu" if alone else "node")
    if alone and (each == "node" or local_ranks < 2):
        one = "node" if each == "node" else "GPU" if session.device == "cuda" else "process"
        problem = f"there is nobody to compare with: 1 {one} takes part"
        raise UsageError(problem, "at least two GPUs, or --nodes 2")
    return {
        "node": place.node,
        "nodes": place.nodes,
        "seats": local_ranks,
        "each": "node" if each == "node" else "seat",
        "address": place.address or "127.0.0.1",
        "port": place.port or free_port(),
        "device": session.device,
        "repeats": REPEATS,
        "at_once": 1 if alone and session.device == "cpu" else 4096,
        "slow": limits.slow,
        "fine": limits.fine,
    }


def _aside(ended: ChildExit) -> int:
    """What a node says that is not the first."""
    if ended.outcome != "done":
        raise FailedCheckError(f"this node could not take part to the end: {ended.reason}")
    click.echo("this node took part; the result is printed on node 0", err=True)
    return ExitCode.FINE


def _answer(progress: IsolateProgress, limits: PairLimits, ended: ChildExit, as_json: bool) -> int:
    if not progress.trials:
        untried = progress.untried and "--duration left no time for a try"
        raise FailedCheckError(
            f"nothing was tried: {ended.reason or untried or 'no node came'}", _way_out(ended)
        )
    absent = {
        f"node {one}": f"it did not come within {progress.join:g} s" for one in progress.absent
    }
    cut = ended.reason or (
        f"--duration left no time for {progress.untried} tries" if progress.untried else ""
    )
    if cut:  # nobody is called slow for a try that was not repeated: the job that ended this may have slowed it
        limits = msgspec.structs.replace(limits, slow=0.0, floor=None)
    answer = isolate(progress.members, progress.trials, limits, absent)
    if cut and not (answer.culprits or answer.suspects):
        sentence = f"not all was tried: {cut}"
        answer = msgspec.structs.replace(answer, outcome="unknown", sentence=sentence)
    if as_json:
        whole = IsolateAnswer(
            members=progress.members, answer=answer, ended=cut, trials=progress.trials
        )
        click.echo(msgspec.json.format(msgspec.json.encode(whole), indent=2).decode())
    else:
        for line in isolation_lines(answer):
            click.echo(clean(line, 500))
    return ExitCode.FINE if answer.outcome == "fine" else ExitCode.FOUND


def _way_out(ended: ChildExit) -> str:
    if "EADDRINUSE" in ended.reason or "address already in use" in ended.reason.lower():
        return "name another port: --rendezvous HOST:PORT"
    return ""
