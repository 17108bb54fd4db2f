"""Store the events of all agents of a fleet, and answer questions about them."""

import logging
import sys
from pathlib import Path

import click

from mldebug.config.schema import load_config
from mldebug.core.plugins import NoOptions
from mldebug_agents.fleet.hub.process import Hub
from mldebug_agents.fleet.places import hub_dir
from mldebug_agents.system.service import log_lines
from mldebug_agents.system.service.large_blocks import give_back_large_blocks
from mldebug_agents.system.service.shutdown import Shutdown

log = logging.getLogger("mldebug")


@click.command("hub")
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(config: Path | None) -> None:
    """Store the events of all agents of a fleet, and answer questions about them.

    One process on one machine, with a database in one file; runs until SIGTERM. The section `hub` of the config says where it
    listens, the section `fleet` of each agent's where it sends. Ask it with `mldebug lemons`.
    """
    log_lines.set_up(sys.stderr)
    give_back_large_blocks()
    settings = load_config(config)
    shutdown = Shutdown()
    hub = Hub(settings)
    shutdown.begin()
    shutdown.set_handlers(hub.stop, lambda: None, lambda: "threads of the hub do not come back")
    log.info("its folder is %s", hub_dir(settings))
    hub.run()
    shutdown.leave()


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug hub`: store the events of all agents of a fleet, and answer questions about them."""
    return command
