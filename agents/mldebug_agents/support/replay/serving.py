"""Serves a recorded node in place of this one, until the recording ends."""

import logging
from pathlib import Path

import click
import msgspec

from mldebug.config.schema import Config, load_config
from mldebug.core.text import typed
from mldebug_agents.support.replay.recording import Recording, load
from mldebug_agents.support.replay.running import Replay, replay_state_dir
from mldebug_agents.system.service.shutdown import Shutdown
from mldebug_agents.web.server import AgentServer

log = logging.getLogger("mldebug")


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
