"""Watch this node's jobs; a stall becomes a report by itself."""

import sys
from importlib import import_module
from pathlib import Path

import click
import msgspec

from mldebug.config.schema import Config, load_config
from mldebug.core.errors import UsageError
from mldebug.core.plugins import NoOptions
from mldebug_agents.agent.children import CHILDREN
from mldebug_agents.system.service import log_lines
from mldebug_agents.system.service.large_blocks import give_back_large_blocks
from mldebug_agents.system.spawn import WORKERS, Spawner

SERVING, REPLAY = "mldebug_agents.agent.serving", "mldebug_agents.support.replay.serving"
"""Imported once it is known which of them runs, and after the helper process was forked: what the agent imports is three times what
its children need, and each of them would hold a copy of what the agent changes of it.
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
        factor = _factor(speed)
        import_module(REPLAY).play(recorded, config, factor, loop=loop, state_dir=state_dir)
        return
    if loop or state_dir is not None or speed != "1x":
        raise UsageError("--speed, --loop and --state-dir go with --replay", "name the bundle")

    def read() -> Config:
        return with_listen(load_config(config), listen)

    give_back_large_blocks()
    with Spawner({**WORKERS, **CHILDREN}) as spawner:
        import_module(SERVING).run(read, spawner)


def with_listen(settings: Config, listen: str | None) -> Config:
    """The configuration with another `agent.listen`, where the command line has one."""
    if listen is None:
        return settings
    section = msgspec.structs.replace(settings.agent, listen=listen)
    return msgspec.structs.replace(settings, agent=section)


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


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug agent`: watch this node's jobs; a stall becomes a report by itself."""
    return agent
