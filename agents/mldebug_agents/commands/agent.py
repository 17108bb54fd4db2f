"""Watch this node's jobs; a stall becomes a report by itself."""

import logging
import sys
from pathlib import Path

import click
import msgspec

from mldebug.config import Config, load_config
from mldebug.errors import MldebugError
from mldebug_agents.life import loglines
from mldebug_agents.life.ending import Ending
from mldebug_agents.node import Node
from mldebug_agents.server import Server
from mldebug_agents.starting.leftovers import Leftover
from mldebug_agents.state.ledger import Ledger
from mldebug_agents.workbench import Workbench

log = logging.getLogger("mldebug")

LAST_WRITES = 0.8  # seconds for what waits to be written at the end


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


@click.command("agent")
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def agent(config: Path | None) -> None:
    """Watch this node's jobs; a stall becomes a report by itself.

    Runs until SIGTERM; SIGHUP reads the config again. What it sees: `mldebug status`, and Prometheus metrics where
    `agent: {listen: …}` says.
    """
    loglines.set_up(sys.stderr)
    settings = load_config(config)
    with Workbench(settings) as bench:
        ending = Ending()
        ending.begin()
        serve(settings, bench, ending, config)
    ending.leave()


def serve(settings: Config, bench: Workbench, ending: Ending, file: Path | None) -> None:
    """Run the node and its server until a signal says stop."""
    server = Server(settings.agent)
    server.start()
    ledger = Ledger(settings.agent.state_dir, bench.spawner, server.serve_door)
    node = Node(settings, bench, ledger, server.publish, read_config=lambda: load_config(file))
    ending.tell(node.stop, node.ask_to_reload, lambda: _stuck(node, bench))
    try:
        ledger.start()
        node.run()
    except MldebugError as error:
        ending.hurry(error)
        raise
    finally:
        _end(bench, server, ledger)


def _end(bench: Workbench, server: Server, ledger: Ledger) -> None:
    """The children first: what waits for them comes back. Nothing here waits long."""
    ledger.leave(bench.spawner.clear(spare=ledger.worker))
    server.stop()
    ledger.close(LAST_WRITES)
    for one in bench.spawner.close():
        log.warning("left behind: %s", _named(one))


def _stuck(node: Node, bench: Workbench) -> str:
    busy = [source.name for source in node.snapshot().sources if source.stuck or source.error]
    left = [_named(one) for one in bench.spawner.leftovers]
    return "; ".join([*busy, *left]) or "threads do not come back"


def _named(one: Leftover) -> str:
    return f"pid {one.pid}, started {one.start_ticks} ticks after boot ({one.words})"


def create(options: Options) -> click.Command:
    """Build the command."""
    return agent
