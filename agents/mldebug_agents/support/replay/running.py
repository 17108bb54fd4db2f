"""Plays a recording in its own time or faster, and publishes a snapshot after each event as an agent does."""

import contextlib
import logging
import queue
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from mldebug.config.schema import Config, effective_yaml
from mldebug.core.errors import UsageError
from mldebug.hardware.health.model import BAD
from mldebug.status.snapshot import Snapshot
from mldebug_agents.support.replay.player import Player
from mldebug_agents.support.replay.recording import Recording
from mldebug_agents.web.listeners import SOCKET, open_unix

log = logging.getLogger("mldebug")

REPUBLISH = 1.0  # seconds


class Replay:
    """Replays a recording in place of an agent's main loop. `speed` 10: ten times as fast; 0: without pauses."""

    def __init__(
        self,
        recording: Recording,
        config: Config,
        publish: Callable[[Snapshot], None],
        *,
        speed: float = 1.0,
        loop: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recording, self._config, self._publish = recording, config, publish
        self._speed, self._loop, self._monotonic = speed, loop, monotonic
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.stopping = False
        self.last: Snapshot | None = None
        Player(recording, config)  # raises before anything is served where there is nothing to play

    @property
    def words(self) -> str:
        """Node and start of the recording: "node1 2026-11-21T05:50:41Z"."""
        began = datetime.fromtimestamp(self._recording.manifest.began_at, UTC)
        return f"{self._recording.node} {began.strftime('%Y-%m-%dT%H:%M:%SZ')}"

    def run(self) -> str:
        """Play until the end or until `stop`; returns a one-line summary."""
        while True:
            summary = self._once()
            if not self._loop or self.stopping:
                return summary
            log.info("%s; from the beginning", summary)

    def stop(self) -> None:
        """End the replay soon; safe in a signal handler."""
        self.stopping = True
        self._wake.put(None)

    def _once(self) -> str:
        player = Player(self._recording, self._config, self.words)
        began, first = self._monotonic(), player.clock.at
        played = 0
        for event in player.events:
            self._wait(began, event.at - first)
            if self.stopping:
                break
            player.play(event)
            played += 1
            self.last = player.snapshot()
            self._publish(self.last)
        return _summary(player, played, player.clock.at - first, self.last)

    def _wait(self, began: float, offset: float) -> None:
        """Until that moment of the recording is due."""
        while not self.stopping and self._speed > 0:
            left = began + offset / self._speed - self._monotonic()
            if left <= 0:
                return
            try:
                self._wake.get(timeout=min(left, REPUBLISH))
            except queue.Empty:
                continue


def _summary(player: Player, played: int, seconds: float, last: Snapshot | None) -> str:
    bad = [one for one in (last.health if last else ()) if one.state in BAD]
    health = "; ".join(f"{one.component} {one.state}: {one.reason}" for one in bad) or "healthy"
    of = len(player.events)
    return (
        f"replay ended after {played} of {of} moments, {seconds:.1f} recorded seconds and"
        f" {player.records} kernel records: {health}"
    )


CONFIG = "mldebug.yaml"


EMPTY = "give --state-dir an empty folder, or leave it out"


@contextmanager
def replay_state_dir(wanted: Path | None, config: Config) -> Iterator[tuple[Path, socket.socket]]:
    """A context with a temporary state dir: yields the config file for `mldebug status --config`, and the socket; both are
    removed afterwards.
    """
    with contextlib.ExitStack() as undo:
        folder = wanted or Path(tempfile.mkdtemp(prefix="mldebug-replay-"))
        if wanted is None:
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
        yield _prepared_folder(folder, config, undo)


def _prepared_folder(
    folder: Path, config: Config, undo: contextlib.ExitStack
) -> tuple[Path, socket.socket]:
    """Only what was made here is removed again."""
    file = folder / CONFIG
    agent = msgspec.structs.replace(config.agent, state_dir=folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file.open("x") as stream:
            undo.callback(file.unlink, missing_ok=True)
            stream.write(effective_yaml(msgspec.structs.replace(config, agent=agent)))
        listener = undo.enter_context(open_unix(folder))
        undo.callback((folder / SOCKET).unlink, missing_ok=True)
    except FileExistsError as error:
        raise UsageError(f"{file} is there already", EMPTY) from error
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}", EMPTY) from error
    return file, listener
