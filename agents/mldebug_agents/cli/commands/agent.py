"""Watch this node's jobs; a stall becomes a report by itself."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from mldebug.config.schema import Config, load_config
from mldebug.core.errors import MldebugError, UsageError
from mldebug.core.plugins import NoOptions
from mldebug.core.text import typed
from mldebug_agents.agent.loop import AgentLoop
from mldebug_agents.agent.node_tools import CurrentConfig, NodeTools, open_tools
from mldebug_agents.agent.wiring import build_agent
from mldebug_agents.state.store import StateStore
from mldebug_agents.support.replay.recording import Recording, load
from mldebug_agents.support.replay.running import Replay, replay_state_dir
from mldebug_agents.system.child.leftovers import Leftover
from mldebug_agents.system.service import log_lines
from mldebug_agents.system.service.shutdown import Shutdown
from mldebug_agents.web.server import AgentServer

log = logging.getLogger("mldebug")

LAST_WRITES = 0.8  # seconds for what waits to be written at the end
SWITCH = 0.001  # seconds after which a thread that computes lets another go on
"""A look at a node makes thousands of short system calls, and each lets the other threads go on: at Python's 5 ms a look at
3,000 processes took twice as long beside one thread that computes.
"""


@click.command("agent")
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="In place of agent.listen, where Prometheus reads; '' for nowhere.",
)
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
    config: Path | None,
    listen: str | None,
    recorded: Path | None,
    speed: str,
    loop: bool,
    state_dir: Path | None,
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

    def read() -> Config:
        return with_listen(load_config(config), listen)

    current = CurrentConfig(read())
    with open_tools(current) as tools:
        shutdown = Shutdown()
        shutdown.begin()
        serve(current, tools, shutdown, read)
    shutdown.leave()


def with_listen(settings: Config, listen: str | None) -> Config:
    """The configuration with another `agent.listen`, where the command line has one."""
    if listen is None:
        return settings
    section = msgspec.structs.replace(settings.agent, listen=listen)
    return msgspec.structs.replace(settings, agent=section)


def serve(
    current: CurrentConfig, tools: NodeTools, shutdown: Shutdown, read: Callable[[], Config]
) -> None:
    """Run the agent, its main loop and its HTTP server, until a signal ends it. Raises MldebugError
    where it cannot go on.

    `read`: reads the configuration again, at a SIGHUP.
    """
    sys.setswitchinterval(SWITCH)
    built = build_agent(current, tools, read)
    loop = built.loop
    shutdown.set_handlers(loop.stop, loop.ask_to_reload, lambda: _stuck(loop, tools))
    try:
        built.store.start()
        loop.run()
    except MldebugError as error:
        shutdown.hurry(error)
        raise
    finally:
        _end(tools, built.server, built.store)


def play(
    path: Path, file: Path | None, speed: float, *, loop: bool, state_dir: Path | None
) -> None:
    """Serve a recorded node (`path`) until the recording ends or a signal comes, then print a summary.

    `file`: the config; `speed`: seconds of the recording per second; `loop`: begin again at its
    end; `state_dir`: None for a temporary one.
    """
    recording = load(path)
    settings = replay_settings(recording, file)
    server = AgentServer(settings.agent)
    replay = Replay(recording, settings, server.publish, speed=speed, loop=loop)
    shutdown = Shutdown()
    shutdown.begin()
    shutdown.set_handlers(replay.stop, lambda: None, lambda: "the replay")
    with replay_state_dir(state_dir, settings) as (config, listener):
        server.start()
        server.serve_socket(listener)
        log.info("replay of %s: ask %s", replay.words, typed("status", config))
        try:
            summary = replay.run()
        finally:
            server.stop()
    click.echo(summary)
    shutdown.leave()


def replay_settings(recording: Recording, file: Path | None) -> Config:
    """The configuration of a replay: the given file, or the defaults with health and metrics as they were recorded."""
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


def _end(tools: NodeTools, server: AgentServer, store: StateStore) -> None:
    """The children first: what waits for them comes back. Nothing here waits long."""
    tools.gpus.close()
    spawner = tools.context.spawner
    store.leave((*spawner.clear(spare=store.worker), *tools.gpus.leftovers()))
    server.stop()
    store.close(LAST_WRITES)
    for one in spawner.close():
        log.warning("left behind: %s", _named(one))


def _stuck(node: AgentLoop, tools: NodeTools) -> str:
    busy = [source.name for source in node.snapshot().sources if source.stuck or source.error]
    left = [_named(one) for one in tools.leftovers()]
    return "; ".join([*busy, *left]) or "threads do not come back"


def _named(one: Leftover) -> str:
    return f"pid {one.pid}, started {one.start_ticks} ticks after boot ({one.words})"


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug agent`: watch this node's jobs; a stall becomes a report by itself."""
    return agent
