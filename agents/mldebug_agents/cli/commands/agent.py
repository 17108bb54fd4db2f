"""Watch this node's jobs; a stall becomes a report by itself."""

import contextlib
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from mldebug.cluster.membership import lives
from mldebug.cluster.run_identity import job_key, run_id
from mldebug.config.schema import Config, load_config
from mldebug.core.errors import MldebugError, UsageError
from mldebug.core.hints import typed
from mldebug.core.model import Job, NodeCapture
from mldebug_agents.agent.loop import Node
from mldebug_agents.agent.workbench import Workbench
from mldebug_agents.alerts.action_runner.alertmanager import AlertReceiver
from mldebug_agents.alerts.action_runner.capture_requests import CaptureRequests
from mldebug_agents.cluster.node_captures import machine
from mldebug_agents.cluster.peers.controller import PeersController
from mldebug_agents.cluster.peers.coordinated_capture import ClusterCapture
from mldebug_agents.cluster.peers.net.client import PeerClient
from mldebug_agents.cluster.peers.net.identity import counting, in_child
from mldebug_agents.cluster.peers.net.refusals import Refusals
from mldebug_agents.cluster.peers.routes import app
from mldebug_agents.cluster.peers.setup import PeerSetup, join
from mldebug_agents.cluster.peers.verbs import CLUSTER_PATH, DUMP_PATH, member_verbs
from mldebug_agents.hardware.gpu.controller import gpu_verbs
from mldebug_agents.incidents.manual import write_case
from mldebug_agents.state.store import StateStore
from mldebug_agents.support.replay.recording import Recording, load
from mldebug_agents.support.replay.running import Replay, place
from mldebug_agents.system.child.leftovers import Leftover
from mldebug_agents.system.service import log_lines
from mldebug_agents.system.service.shutdown import Shutdown
from mldebug_agents.web.server import AgentServer, OwnVerb

log = logging.getLogger("mldebug")

LAST_WRITES = 0.8  # seconds for what waits to be written at the end


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


@click.command("agent")
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
@click.option(
    "--replay",
    "recorded",
    metavar="BUNDLE",
    type=click.Path(path_type=Path, readable=False),
    help="Play back a support bundle, a file or a folder, in place of this node.",
)
@click.option("--speed", default="1x", metavar="10x", help="How fast; `max`: as fast as it goes.")
@click.option("--loop", is_flag=True, help="Play it again and again.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, readable=False),
    help="Where the replay's socket goes; a temporary folder by default.",
)
def agent(
    config: Path | None, recorded: Path | None, speed: str, loop: bool, state_dir: Path | None
) -> None:
    """Watch this node's jobs; a stall becomes a report by itself.

    Runs until SIGTERM; SIGHUP reads the config again. What it sees: `mldebug status`, and Prometheus metrics where
    `agent: {listen: …}` says.

    With --replay it serves a recorded node instead, looks at nothing here, and ends with the recording.
    """
    log_lines.set_up(sys.stderr)
    if recorded is not None:
        play(recorded, config, _factor(speed), loop=loop, state_dir=state_dir)
        return
    if loop or state_dir is not None or speed != "1x":
        raise UsageError("--speed, --loop and --state-dir go with --replay", "name the bundle")
    settings = load_config(config)
    with Workbench(settings) as bench:
        ending = Shutdown()
        ending.begin()
        serve(settings, bench, ending, config)
    ending.leave()


def serve(settings: Config, bench: Workbench, ending: Shutdown, file: Path | None) -> None:
    """Run the node and its server until a signal says stop."""
    server = AgentServer(settings.agent)
    joined = join(settings.cluster, in_child(bench.spawner))
    server.start()
    ledger = StateStore(settings.agent.state_dir, bench.spawner, server.serve_socket)
    node = Node(
        settings,
        bench,
        ledger,
        server.publish,
        read_config=lambda: load_config(file),
        members=lambda node: members(node, joined),
    )
    if joined is not None and node.members is not None:
        judge = partial(_judged, settings, bench.node)
        refusals, proof = node.members.refusals, joined.identity
        ask, waiting = node.members.ask, lambda: ledger.waiting
        unseen = lambda: node.found.gaps
        door = app(ask, bench.node, judge, waiting, proof, refusals, machine(), unseen)
        proof.server.sslobject_class = counting(proof, partial(_turned_away, refusals))
        admits = partial(_admits, joined.talk, refusals)
        slow = partial(refusals.count, "slow", why="it takes too long to say what it wants")
        joined.talk.tell(refusals.count)
        server.serve_peers(door, joined.door, proof.server, admits, slow)
    talk = joined.talk if joined is not None else None
    server.verbs = gpu_verbs(node.boards.hardware.desk)
    server.own_verbs = member_verbs(node.members, talk)
    server.alerts.answer = arrange(node.boards.acting.captures, bench, server.own_verbs).answer
    ending.tell(node.stop, node.ask_to_reload, lambda: _stuck(node, bench))
    try:
        ledger.start()
        node.run()
    except MldebugError as error:
        ending.hurry(error)
        raise
    finally:
        _end(bench, server, ledger)


def members(node: Node, joined: PeerSetup | None) -> PeersController | None:
    """Other agents, where some are configured."""
    if joined is None:
        return None
    return PeersController(
        *(node.bench.node, joined.port, joined.talk, joined.candidates, joined.interval),
        *(node.inbox, node.incidents, node.ask_capture),
        topology=node.config.cluster.topology,
    )


def arrange(
    captures: CaptureRequests, bench: Workbench, verbs: Mapping[str, OwnVerb]
) -> AlertReceiver:
    """How what alerts and actions ask for is captured: by all agents that are joined, else by this one."""

    def write(capture: NodeCapture) -> str:
        taken = write_case(bench.config.agent.state_dir, (capture,), time.time(), trigger="alert")
        if taken.trouble:
            raise MldebugError(taken.trouble)
        return taken.report.id

    def across(name: str, job: Job | None) -> str:
        run = run_id(job_key(job, bench.node)) if job is not None else name
        report: Any = verbs[DUMP_PATH]({"job": run, "trigger": "alert"}, None)
        return str(report.id)

    def elsewhere(wanted: Iterable[str]) -> Iterator[str]:
        """None where no other agents are joined, or nobody coordinates."""
        with contextlib.suppress(MldebugError):
            view: Any = verbs[CLUSTER_PATH]({}, None)
            names = set(wanted)
            shown = [news for one in view.members for news in one.runs if lives(news)]
            keys = {one.key for one in shown if names & {one.name, run_id(one.key)}}
            yield from map(run_id, keys)

    captures.write, captures.across = write, across
    return AlertReceiver(captures, bench.node, elsewhere)


def _admits(talk: PeerClient, refusals: Refusals, address: str) -> bool:
    """May an agent come from there? Told before it has said a word."""
    if talk.allows(address):
        return True
    refusals.count("network", address, "it is in no network of cluster.networks")
    return False


def _turned_away(refusals: Refusals, reason: str, why: str) -> None:
    refusals.count(reason, "", why)


def _judged(settings: Config, node: str, told: ClusterCapture) -> bytes:
    """What came of all nodes for a person, as a report; it is stored here."""
    if told.run is None:
        raise MldebugError("no node has sent a capture of it")
    asked = msgspec.structs.replace(told.run.asked, by=node)
    taken = write_case(
        settings.agent.state_dir, told.run.captures, time.time(), asked, node, told.trigger
    )
    return msgspec.json.encode(taken.report)


def play(
    path: Path, file: Path | None, speed: float, *, loop: bool, state_dir: Path | None
) -> None:
    """Serve a recorded node until the recording ends, or a signal says stop."""
    recording = load(path)
    settings = replay_settings(recording, file)
    server = AgentServer(settings.agent)
    replay = Replay(recording, settings, server.publish, speed=speed, loop=loop)
    ending = Shutdown()
    ending.begin()
    ending.tell(replay.stop, lambda: None, lambda: "the replay")
    with place(state_dir, settings) as (config, door):
        server.start()
        server.serve_socket(door)
        log.info("replay of %s: ask %s", replay.words, typed("status", config))
        try:
            told = replay.run()
        finally:
            server.stop()
    click.echo(told)
    ending.leave()


def replay_settings(recording: Recording, file: Path | None) -> Config:
    """The config that was given; else health and metrics as they were set there, the rest by default."""
    settings = load_config(file)
    there = recording.config
    if file is not None or there is None:
        return settings
    return msgspec.structs.replace(settings, health=there.health, metrics=there.metrics)


def _factor(speed: str) -> float:
    """How many recorded seconds go by in one; 0 for all at once."""
    if speed == "max":
        return 0.0
    try:
        factor = float(speed.removesuffix("x"))
    except ValueError:
        factor = 0.0
    if not 0.01 <= factor <= 10_000:
        raise UsageError(f"--speed {speed!r} is no speed", "write it like 10x or 0.5x, or `max`")
    return factor


def _end(bench: Workbench, server: AgentServer, ledger: StateStore) -> None:
    """The children first: what waits for them comes back. Nothing here waits long."""
    bench.gpus.close()
    ledger.leave((*bench.spawner.clear(spare=ledger.worker), *bench.gpus.leftovers()))
    server.stop()
    ledger.close(LAST_WRITES)
    for one in bench.spawner.close():
        log.warning("left behind: %s", _named(one))


def _stuck(node: Node, bench: Workbench) -> str:
    busy = [source.name for source in node.snapshot().sources if source.stuck or source.error]
    left = [_named(one) for one in (*bench.spawner.leftovers, *bench.gpus.leftovers())]
    return "; ".join([*busy, *left]) or "threads do not come back"


def _named(one: Leftover) -> str:
    return f"pid {one.pid}, started {one.start_ticks} ticks after boot ({one.words})"


def create(options: Options) -> click.Command:
    """Build the command."""
    return agent
