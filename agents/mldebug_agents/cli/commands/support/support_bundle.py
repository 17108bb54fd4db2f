"""Record this node into one redacted file, for whoever helps."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import click
import msgspec

from mldebug.config.schema import SYSTEM_STATE_DIR, Config, load_config
from mldebug.core.errors import UsageError
from mldebug.core.plugins import NoOptions
from mldebug.core.progress import progress_line
from mldebug.core.units import parse_duration
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.support.bundle import facts, packing
from mldebug_agents.support.bundle.layout import Manifest
from mldebug_agents.support.bundle.recorder import Recorder
from mldebug_agents.web.client import inquire

MAX_SECONDS = 600.0


@click.command("support-bundle")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path, readable=False),
    help="The file; mldebug-bundle-TIME.tar.gz by default.",
)
@click.option("--for", "duration", metavar="DURATION", default="30s", help="How long; 30s by default.")  # fmt: skip
@click.option(
    "--log",
    type=click.Path(path_type=Path, readable=False),
    help="The agent's log: journalctl -u mldebug > FILE.",
)
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(out: Path | None, duration: str, log: Path | None, config: Path | None) -> None:
    """Record this node into one redacted file, for whoever helps.

    Holds: GPUs, kernel log, status, jobs, config, versions, doctor, the agent's memory, /proc and log (--log), the last
    reports. Secrets, and names of hosts, users and devices are
    replaced where they can be recognised: look through it before you send it. Nothing is sent anywhere.
    `mldebug agent --replay FILE` plays it back.
    """
    seconds = _seconds(duration)
    settings = load_config(config) if config else _of_this_node(load_config(None))
    stamp = datetime.fromtimestamp(time.time(), UTC).strftime("%Y%m%dT%H%M%SZ")
    path = out or Path(f"mldebug-bundle-{stamp}.tar.gz")
    packing.check(path)
    click.echo(f"mldebug: recording for {duration}; Ctrl-C ends it sooner", err=True)
    with progress_line("recording"), open_tools(settings) as tools, interrupted() as enough:
        recorder = Recorder(tools, seconds, enough)
        manifest = recorder.record()
    folder = recorder.folder
    folder.attempt("the agent's log", lambda: facts.agent_log(folder, log))
    manifest = msgspec.structs.replace(manifest, gaps=tuple(folder.gaps))
    content, manifest = packing.redact_and_pack(folder.files, manifest, f"mldebug-bundle-{stamp}")
    packing.write(path, content)
    _tell(path, len(content), manifest)


@contextmanager
def interrupted() -> Iterator[Callable[[], bool]]:
    """A context that gives a function which returns whether Ctrl-C was pressed.

    A second Ctrl-C ends the command as usual.
    """
    stop_signals: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        stop_signals.append(number)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(stop_signals)
    finally:
        signal.signal(signal.SIGINT, before)


def _tell(path: Path, size: int, manifest: Manifest) -> None:
    click.echo(
        f"{path}: {size / 1024:,.0f} KiB, {len(manifest.files)} files; nothing was sent anywhere"
    )
    for gap in manifest.gaps:
        way = f" → {gap.way_out}" if gap.way_out else ""
        click.echo(f"  missing: {gap.what}: {gap.reason}{way}")
    click.echo(f"look through it before you send it: tar xzf {path}")
    click.echo(f"play it back: mldebug agent --replay {path}")


def _of_this_node(settings: Config) -> Config:
    """This user's own agent, or else the service of this node."""
    own = settings.agent
    if own.state_dir == SYSTEM_STATE_DIR or inquire(own.state_dir).outcome != "none":
        return settings
    if inquire(SYSTEM_STATE_DIR).outcome == "none":
        return settings
    there = msgspec.structs.replace(own, state_dir=SYSTEM_STATE_DIR)
    return msgspec.structs.replace(settings, agent=there)


def _seconds(duration: str) -> float:
    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise UsageError(f"--for {duration!r}: {error}", "write it like 30s or 2m") from error
    if not 0 <= seconds <= MAX_SECONDS:
        raise UsageError(f"--for {duration!r}: it may be 0 s to 10 min", "write it like 30s or 2m")
    return seconds


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug support-bundle`: record this node into one redacted file, for whoever helps."""
    return command
