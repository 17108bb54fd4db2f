"""Send a test message to a channel of the config."""

import platform
import time
from pathlib import Path

import click

from mldebug import __version__
from mldebug.alerts.message import message_of
from mldebug.alerts.model import (
    Alert,
    AlertEvent,
    EventState,
    MessageRefusedError,
    Severity,
)
from mldebug.cli.param_types import CHANNEL
from mldebug.config.schema import Config, load_config
from mldebug.core.errors import FailedCheckError, UsageError
from mldebug.core.plugins import NoOptions
from mldebug.core.plugins import create as create_plugin
from mldebug.core.progress import progress_line
from mldebug.core.redact import safe_line

SERVICE = Path("/etc/mldebug/mldebug.yaml")  # what its unit reads


@click.command("notify", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=click.Path(path_type=Path, readable=False),
    help="Config file; default: that of the node's service.",
)
@click.option("--test", "name", type=CHANNEL, metavar="CHANNEL", help="The channel's name.")
def command(config: Path | None, name: str | None) -> None:
    """Send a test message to a channel of the config, first as something wrong, then as over.

    Exit code 0: both were accepted; 1: one was not, and the reason is printed.
    """
    if config is None and not SERVICE.exists():
        raise UsageError(f"there is no {SERVICE} here", "name the config file: --config FILE")
    settings = load_config(config or SERVICE)
    if name is None:
        raise UsageError("which channel is to be tried?", f"add --test NAME: {_choice(settings)}")
    plugin = settings.channels.get(name)
    if plugin is None:
        raise UsageError(
            f"there is no channel {safe_line(name, 60)!r} in {config or SERVICE}", _choice(settings)
        )
    channel = create_plugin("channels", plugin.kind, plugin.options)
    for event in _events(time.time()):
        message = message_of(event, platform.node(), settings.events.link, __version__)
        try:
            with progress_line(f"sending to {safe_line(name, 60)}"):
                channel.send(message)
        except (OSError, MessageRefusedError) as error:
            reason = safe_line(str(error), 300)
            raise FailedCheckError(f"channel {name}: {reason}", "mend it and try again") from error
        click.echo(f"{name} ({plugin.kind}) has accepted the {event.state} message")


def _choice(settings: Config) -> str:
    names = ", ".join(settings.channels)
    return f"choose from: {names}" if names else "add one below channels:"


def _events(now: float) -> tuple[AlertEvent, AlertEvent]:
    alert = Alert(
        key=f"test/{now:.0f}",
        kind="test",
        severity=Severity.INFO,
        sentence="a test of mldebug's notifications: nothing is wrong",
        next_steps=("nothing to do",),
    )
    firing = AlertEvent(alert=alert, state=EventState.FIRING, started=now, fired=now)
    over = AlertEvent(
        alert=alert, state=EventState.RESOLVED, started=now, ended=now + 0.001, outcome="cleared"
    )
    return firing, over


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug notify`: send a test message to a channel of the config."""
    return command
