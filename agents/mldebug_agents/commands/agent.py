"""Watch this node's jobs; a stall becomes a report by itself."""

import fcntl
import logging
import os
import signal
import sys
from pathlib import Path

import click
import msgspec

from mldebug.config import Config, load_config
from mldebug.errors import MldebugError, UsageError
from mldebug_agents.ledger import Ledger
from mldebug_agents.node import Node
from mldebug_agents.server import Server
from mldebug_agents.workbench import Workbench


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


@click.command("agent")
@click.option("--config", type=click.Path(path_type=Path), help="Config file.")
def agent(config: Path | None) -> None:
    """Watch this node's jobs; a stall becomes a report by itself.

    Runs until SIGTERM. What it sees: `mldebug status`, and Prometheus metrics where `agent: {listen: …}` says.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    settings = load_config(config)
    with Workbench(settings) as bench, _only_one(settings.agent.state_dir):
        serve(settings, bench)


def serve(settings: Config, bench: Workbench) -> None:
    """Run the node and its server until a signal says stop."""
    ledger = Ledger(settings.agent.state_dir)
    server = Server(settings.agent)
    node = Node(settings, bench, ledger, server.publish)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: node.stop())
    server.start()
    try:
        node.run()
    finally:
        server.stop()
        ledger.close()


class _only_one:  # noqa: N801 - a context manager that reads like a word
    """Holds the lock of a state dir; a second agent there is refused with the pid of the first."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "agent.lock"
        self.fd = -1

    def __enter__(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(self.fd, 20, 0).decode(errors="replace").strip() or "unknown"
            raise UsageError(
                f"another agent (pid {pid}) already uses {self.path.parent}",
                "stop it, or set another agent.state_dir",
            ) from error
        except OSError as error:
            raise MldebugError(
                f"the state dir {self.path.parent} cannot be used: {error.strerror}",
                "set agent.state_dir in the config",
            ) from error
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, str(os.getpid()).encode(), 0)

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def create(options: Options) -> click.Command:
    """Build the command."""
    return agent
