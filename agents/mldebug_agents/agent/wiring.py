"""Puts the parts of an agent together: the main loop, its workers and monitors, the store, the server, the link to other agents.

Nothing else connects parts of two subjects: `monitor_wiring` makes the monitors with their readers and workers, `node_tools` opens
what commands use without an agent. What comes and goes with the configuration or a run (a scheduler, a channel, a group of agents)
is made by the part that keeps it.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import msgspec

from mldebug.cluster.known_peers import lives
from mldebug.cluster.messages import CLUSTER_PATH, DUMP_PATH
from mldebug.cluster.run_identity import job_key, run_id
from mldebug.config.schema import Config
from mldebug.core.errors import MldebugError
from mldebug.core.model import Job, NodeCapture
from mldebug.jobs.owners import owner_of
from mldebug.status.snapshot import Snapshot
from mldebug_agents.agent import loop as agent_loop
from mldebug_agents.agent.capture_queue import CaptureQueue, take
from mldebug_agents.agent.loop import AgentLoop
from mldebug_agents.agent.loop_parts import Inbox, LoopParts
from mldebug_agents.agent.monitor_wiring import build_monitors
from mldebug_agents.agent.monitors import Monitors
from mldebug_agents.agent.node_tools import CurrentConfig, NodeTools
from mldebug_agents.agent.recovery import Recovery
from mldebug_agents.alerts.action_runner.alertmanager import AlertReceiver
from mldebug_agents.alerts.action_runner.capture_requests import CaptureRequests
from mldebug_agents.alerts.notifier import AlertNotifier
from mldebug_agents.capture.nccl_ras.client import GLANCE as RAS_GLANCE
from mldebug_agents.cluster.node_captures import machine
from mldebug_agents.cluster.peers.controller import PeersController
from mldebug_agents.cluster.peers.coordinated_capture import ClusterCapture
from mldebug_agents.cluster.peers.inspections import Inspections
from mldebug_agents.cluster.peers.net import identity
from mldebug_agents.cluster.peers.net.client import PeerClient
from mldebug_agents.cluster.peers.net.refusals import Refusals
from mldebug_agents.cluster.peers.setup import PeerSetup, join
from mldebug_agents.cluster.peers.verbs import Verb, peer_verbs
from mldebug_agents.fleet.setup import HubClient, hub_client
from mldebug_agents.hardware.gpu.controller import gpu_verbs
from mldebug_agents.incidents import node_inspection
from mldebug_agents.incidents.exits.exit_evidence import ExitEvidence
from mldebug_agents.incidents.exits.exit_tracker import ExitTracker
from mldebug_agents.incidents.exits.failed_attempts import FailedAttempts
from mldebug_agents.incidents.exits.pidfds import ExitWatch
from mldebug_agents.incidents.exits.space_evidence import SpaceEvidence
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.incidents.manual import write_case
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.context import Context
from mldebug_agents.system.service.clock import Clock
from mldebug_agents.system.service.sd_notify import SystemdNotifier
from mldebug_agents.system.workers import Result, Worker
from mldebug_agents.watch.goodput_monitor import GoodputMonitor
from mldebug_agents.watch.launcher_watch import LauncherWatch
from mldebug_agents.watch.ras_watch import RasWatch
from mldebug_agents.watch.slowness_watch import SlownessWatch
from mldebug_agents.watch.wait_sampler import WaitSampler
from mldebug_agents.watch.watch import Watch
from mldebug_agents.web.on_demand import OnDemandServer


class Agent(NamedTuple):
    """A whole agent: call `store.start`, then `loop.run`. `server` already serves HTTP."""

    loop: AgentLoop
    store: StateStore
    server: OnDemandServer


def build_agent(
    current: CurrentConfig, tools: NodeTools, read_config: Callable[[], Config]
) -> Agent:
    """Build an agent and start its server, with the link to other agents where they are configured.

    Raises ConfigError or UsageError where an address is taken or a key cannot be used.
    `read_config` reads the config file again.
    """
    config, spawner = current.read(), tools.context.spawner
    server = OnDemandServer(config.agent)
    joined = join(config.cluster, identity.in_child(spawner))
    hub = hub_client(config, tools.context.node, identity.in_child(spawner))
    server.start()
    store = StateStore(config.agent.state_dir, spawner, server.serve_socket)
    loop = build_loop(
        *(current, tools, store, server.publish), read_config=read_config, joined=joined, hub=hub
    )
    if joined is not None:
        inspect = Inspections(joined.client, node_inspection.in_child(spawner, current.read))
        _serve_peers(server, loop, joined, config, store, inspect)
    _serve_people(server, loop, joined)
    return Agent(loop, store, server)


def build_loop(
    current: CurrentConfig,
    tools: NodeTools,
    store: StateStore,
    publish: Callable[[Snapshot], None],
    systemd: SystemdNotifier | None = None,
    read_config: Callable[[], Config] | None = None,
    joined: PeerSetup | None = None,
    hub: HubClient | None = None,
) -> AgentLoop:
    """Build the main loop with all parts of an agent. `publish` gets each new snapshot; `read_config` reads the config file again;
    `joined`: the link to other agents, `hub`: where the fleet's events go, None without them.
    """
    config, context = current.read(), tools.context
    inbox, clock = Inbox(), Clock()
    goodput = GoodputMonitor(store, clock.now, clock.steady)
    workers = _workers(tools, inbox, read_config or current.read)
    notifier = AlertNotifier(config, context.node, store, inbox)
    incidents = IncidentManager(
        *(store, clock),
        written=notifier.incident,
        renamed=notifier.renamed,
        goodput=goodput.view,
        keep_failures=joined is not None,
    )
    capture_queue = CaptureQueue(workers["capture"].order, incidents)
    failed_attempts = FailedAttempts(incidents, capture_queue.ask_now, store.forget, store)
    exit_watch = ExitWatch(context.host, lambda gone: inbox.put(Result("exit", None, gone, None)))
    slowness = SlownessWatch(workers["slowness"].order, incidents)
    peers = _peers(config, context, inbox, incidents, capture_queue, joined, slowness)
    captures = _requested_captures(tools, inbox, _peer_verbs(peers, joined))
    monitors = build_monitors(config, tools, store, inbox, notifier, captures, goodput, clock, hub)
    exits = ExitTracker(
        *(_exit_evidence(tools, monitors), exit_watch, workers["exits"].order),
        *(failed_attempts, store.keep_ends),
    )
    recovery = Recovery(
        *(store, context, tools.leftovers, incidents, failed_attempts, exits),
        capture_queue.ask_now,
    )
    parts = LoopParts(
        context=context,
        leftovers=tools.leftovers,
        failure_counts=tools.capture.failure_counts,
        store=store,
        inbox=inbox,
        workers=workers,
        monitors=monitors,
        incidents=incidents,
        capture_queue=capture_queue,
        failed_attempts=failed_attempts,
        exit_watch=exit_watch,
        exits=exits,
        recovery=recovery,
        launchers=LauncherWatch(context.node, recovery.add_run, capture_queue.ask_for, incidents),
        ras=RasWatch(workers["ras"].order),
        slowness=slowness,
        peers=peers,
    )
    return AgentLoop(config, parts, publish, current.replace, systemd, clock)


def _exit_evidence(tools: NodeTools, monitors: Monitors) -> ExitEvidence:
    known, mounts = monitors.checkpoints.known_series, monitors.storage.mounts_of
    space = SpaceEvidence(tools.context, tools.filesystem_probe, known, mounts)
    return ExitEvidence(tools.capture, complete=space.complete)


def _peer_verbs(peers: PeersController | None, joined: PeerSetup | None) -> dict[str, Verb]:
    """What people and alerts may ask of all agents that are joined."""
    return peer_verbs(peers, joined.client if joined is not None else None)


def _serve_people(server: OnDemandServer, node: AgentLoop, joined: PeerSetup | None) -> None:
    """Serve what people and Alertmanager may ask of this agent, over its own sockets."""
    captures = node.monitors.actions.captures
    own = _peer_verbs(node.peers, joined)
    alerts = AlertReceiver(captures, node.node, partial(_runs_elsewhere, own))
    server.serve_verbs(gpu_verbs(node.monitors.hardware.gpu_controller), own, alerts.answer)


def _serve_peers(
    server: OnDemandServer,
    node: AgentLoop,
    joined: PeerSetup,
    config: Config,
    store: StateStore,
    inspections: Inspections,
) -> None:
    """Serve what other agents may ask of this one, where other agents are configured. The HTTP server is imported for them alone."""
    if node.peers is None:
        return
    refusals, proof = joined.refusals, joined.identity
    judge = partial(_judged, config, node.node)
    peer_app = import_module("mldebug_agents.cluster.peers.routes").app(
        *(node.peers.ask, node.node, judge, lambda: store.waiting, proof, refusals, machine()),
        *(lambda: node.found.gaps, node.peers.work, inspections),
    )
    identity.count_failures(proof, partial(_turned_away, refusals))
    slow = partial(refusals.count, "slow", why="it takes too long to say what it wants")
    server.serve_peers(
        peer_app, joined.listener, proof.server, partial(_admits, joined.client, refusals), slow
    )


def _requested_captures(tools: NodeTools, inbox: Inbox, verbs: dict[str, Verb]) -> CaptureRequests:
    """The part that takes captures for alerts and actions: by all agents that are joined, else by this one."""
    context = tools.context

    def write(capture: NodeCapture) -> str:
        state_dir = context.config.agent.state_dir
        taken = write_case(state_dir, (capture,), time.time(), trigger="alert")
        if taken.trouble:
            raise MldebugError(taken.trouble)
        return taken.report.id

    def across(name: str, job: Job | None) -> str:
        run = run_id(job_key(job, context.node)) if job is not None else name
        report: Any = verbs[DUMP_PATH]({"job": run, "trigger": "alert"}, None)
        return str(report.id)

    return CaptureRequests(tools.capture.capturer, inbox, write, across)


def _workers(
    tools: NodeTools, inbox: Inbox, read_config: Callable[[], Config]
) -> dict[str, Worker]:
    """The loop's own workers by name; each may hang without holding up another."""
    many = agent_loop.AT_ONCE
    watch, ras = Watch(tools.capture), tools.capture.ras
    return {
        "watch": Worker("watch", watch.look, inbox, agent_loop.LOOK_DEADLINE),
        "capture": Worker(
            *("capture", partial(take, tools.capture), inbox, agent_loop.CAPTURE_DEADLINE, many),
            owner_key=lambda order: owner_of(order.job),
        ),
        "exits": Worker(
            *("exits", lambda work: work(), inbox, agent_loop.EXITS_DEADLINE),
            owner_key=lambda work: work.owner,
        ),
        "ras": Worker(
            "ras",
            lambda order: ras.ask(order.job, whole=False, seconds=RAS_GLANCE),
            *(inbox, agent_loop.RAS_DEADLINE, many),
            owner_key=lambda order: owner_of(order.job),
        ),
        "slowness": Worker(
            *("slowness", WaitSampler(tools.capture).carry_out, inbox),
            *(agent_loop.SLOWNESS_DEADLINE, agent_loop.SAMPLED_AT_ONCE),
            owner_key=lambda order: owner_of(order.job),
        ),
        "config": Worker("config", lambda _: read_config(), inbox, agent_loop.CONFIG_DEADLINE),
    }


def _peers(
    config: Config,
    context: Context,
    inbox: Inbox,
    incidents: IncidentManager,
    capture_queue: CaptureQueue,
    joined: PeerSetup | None,
    slowness: SlownessWatch,
) -> PeersController | None:
    """Other agents, where some are configured."""
    if joined is None:
        return None
    return PeersController(
        *(context.node, joined.port, joined.client, joined.candidates, joined.interval),
        *(inbox, incidents, capture_queue.ask_now, joined.refusals),
        topology=config.cluster.topology,
        slowness=slowness,
        goodput=lambda: context.config.goodput,
    )


def _runs_elsewhere(verbs: dict[str, Verb], wanted: Iterable[str]) -> Iterator[str]:
    """Ids of wanted runs on other nodes; none where no other agents are joined, or nobody coordinates."""
    with suppress(MldebugError):
        view: Any = verbs[CLUSTER_PATH]({}, None)
        names = set(wanted)
        shown = [news for peer in view.peers for news in peer.runs if lives(news)]
        keys = {news.key for news in shown if names & {news.name, run_id(news.key)}}
        yield from map(run_id, keys)


def _admits(talk: PeerClient, refusals: Refusals, address: str) -> bool:
    """May an agent come from there? Known before it has sent a word."""
    if talk.allows(address):
        return True
    refusals.count("network", address, "it is in no network of cluster.networks")
    return False


def _turned_away(refusals: Refusals, reason: str, why: str) -> None:
    refusals.count(reason, "", why)


def _judged(config: Config, node: str, merged: ClusterCapture) -> bytes:
    """A capture of all nodes as a report for a person; it is stored here."""
    if merged.run is None:
        raise MldebugError("no node has sent a capture of it")
    queried = msgspec.structs.replace(merged.run.queried, by=node)
    taken = write_case(
        config.agent.state_dir, merged.run.captures, time.time(), queried, node, merged.trigger
    )
    return msgspec.json.encode(taken.report)
