"""A probe over several nodes: one launcher on each, started by ssh or srun; their ranks meet at the first node.

Each node must have the same mldebug and Python at the same path. A launcher whose connection to us is cut ends by itself, as soon
as nobody reads its output.
"""

import re
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from mldebug.core.errors import MldebugError, ToolError
from mldebug.core.redact import clean
from mldebug_agents.probes.child import OF_PEERS, ChildExit, Event, inside
from mldebug_agents.probes.guard import BusyError
from mldebug_agents.probes.session import TorchFacts

WAYS = ("ssh", "srun")
SSH = (
    "ssh",
    "-oBatchMode=yes",
    "-oConnectTimeout=10",
    "-oServerAliveInterval=5",
    "-oControlMaster=no",
)
SRUN = ("srun", "--nodes=1", "--ntasks=1", "--overlap", "--immediate=30")
LOOK = 0.2

EventHandler = Callable[[Event], None]
Runner = Callable[[list[str], EventHandler], ChildExit]


class ProbeNodeFacts(TorchFacts, frozen=True, kw_only=True):
    """What one node reports before a probe is planned. `compute`: pids that compute on its GPUs, None where not known;
    `training`: pids of ranks of jobs; `gigabits`: per second, of each active RDMA port.
    """

    address: str = ""
    port: int = 0
    compute: tuple[int, ...] | None = None
    training: tuple[int, ...] = ()
    gigabits: tuple[float, ...] = ()


class Nodes:
    """Several hosts on which scripts of a probe are run.

    `way`: how to start them there, "srun" or "ssh". `python`: its path on each host. `variables`: environment variables to set
    on each host.
    """

    def __init__(
        self, hosts: Sequence[str], way: str, python: str, variables: Mapping[str, str]
    ) -> None:
        self.hosts, self._way, self._python = tuple(hosts), way, python
        self._variables = variables

    def words(self, host: str, script: str, order: Mapping[str, Any]) -> list[str]:
        """The arguments of the command, to be run on this node, that runs a script of `probes/inside` on `host` by ssh or srun. `order`: what the
        script is to do, passed on as JSON.
        """
        settings = [f"{name}={value}" for name, value in self._variables.items()]
        there = ["env", *settings, *inside(self._python, script, order)]
        if self._way == "srun":
            return [*SRUN, f"--nodelist={host}", *there]
        return [*SSH, "--", host, shlex.join(there)]

    def ask(self, run: Runner, interface: str) -> dict[str, ProbeNodeFacts]:
        """Query all hosts for GPUs, versions and jobs; returns the answers by host. `interface`: the network interface to
        use. Raises ToolError for a host that does not answer.
        """
        facts: dict[str, ProbeNodeFacts] = {}

        def event_handler(host: str) -> EventHandler:
            def on_event(event: Event) -> None:
                if event["event"] == "facts":
                    facts[host] = msgspec.convert(event, ProbeNodeFacts)

            return on_event

        orders = {host: ("facts", {"interface": interface}) for host in self.hosts}
        ended = self.run(run, orders, {host: event_handler(host) for host in self.hosts})
        for host in self.hosts:
            if host not in facts:
                why = ended[host].reason
                raise ToolError(f"node {host} cannot measure: {why}", self._way_out(host, why))
        return facts

    def run(
        self,
        run: Runner,
        orders: Mapping[str, tuple[str, Mapping[str, Any]]],
        on_event: Mapping[str, EventHandler],
    ) -> dict[str, ChildExit]:
        """Run one script per host on all hosts at the same time and wait for all. Returns how each ended, by host.

        `orders`: (script, order) by host. `on_event`: by host, called with each event of its script.
        """
        ended: dict[str, ChildExit] = {}

        def follow(host: str) -> None:
            ended[host] = run(self.words(host, *orders[host]), on_event[host])

        threads = [
            threading.Thread(target=follow, args=(host,), name=f"probe-{host}", daemon=True)
            for host in self.hosts
        ]
        for thread in threads:
            thread.start()
        for one in threads:
            while one.is_alive():  # a join without a limit hears no Ctrl-C
                one.join(LOOK)
        return ended

    def _way_out(self, host: str, reason: str) -> str:
        """What to do about it: another thing where the way to the node fails than where the node itself does."""
        if self._way == "srun" and _OF_SRUN.search(reason):
            return f"inside an allocation that has {host} this must work: srun --overlap --nodelist={host} true"
        if self._way == "ssh" and _OF_SSH.search(reason):
            return f"this must work without a password: ssh {host} true"
        return "each node needs this mldebug and the Python of --python at the same path"


_OF_SRUN = re.compile(r"\bsrun: |slurmstepd: ")
_OF_SSH = re.compile(
    r"\bssh: |Permission denied \(|Host key verification failed|kex_exchange_identification|banner exchange"
    r"|Connection (closed|reset) by .* port|code 255: $"
)


def first_cause(ended: Mapping[str, ChildExit]) -> ChildExit:
    """How the probe ended, as one result: "done" where all hosts were, else the failure that explains the others: first of a
    node in use by a job, then one that is not about a lost connection to another rank.
    """
    failed = [(host, one) for host, one in ended.items() if one.outcome != "done"]
    failed.sort(
        key=lambda pair: (pair[1].outcome != "cancelled", bool(OF_PEERS.search(pair[1].reason)))
    )
    for host, one in failed:
        return msgspec.structs.replace(one, reason=clean(f"node {host}: {one.reason}", 600))
    return ChildExit(outcome="done")


def check_idle(facts: Mapping[str, ProbeNodeFacts], uses_gpus: bool) -> None:
    """Raise BusyError where a node has training ranks or a process that computes on its GPUs. Where the latter is not
    known, raise MldebugError if the probe uses GPUs (`uses_gpus`).
    """
    for host, one in facts.items():
        if one.training:
            raise BusyError(
                f"a training job runs on {host} (pid {one.training[0]})", "wait until it has ended"
            )
        if one.compute is None and uses_gpus:
            raise MldebugError(
                f"who computes on the GPUs of {host} is not known", "does nvidia-smi work there?"
            )
        if one.compute:
            raise BusyError(
                f"a process computes on the GPUs of {host} (pid {one.compute[0]})",
                "wait until it has ended",
            )


def agreed_device(facts: Mapping[str, ProbeNodeFacts], wanted: str) -> str:
    """The device ("cuda" or "cpu") for all nodes; cpu where it is wanted, or no node has GPUs and "auto" is. Raises
    MldebugError where some nodes have no GPU.
    """
    without = [host for host, one in facts.items() if not one.gpus]
    if wanted == "cpu" or (wanted == "auto" and len(without) == len(facts)):
        return "cpu"
    if without:
        raise MldebugError(
            f"PyTorch sees no GPU on {', '.join(without)}", "leave it out, or --device cpu"
        )
    return "cuda"
