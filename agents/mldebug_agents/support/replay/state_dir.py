"""The state dir of a replay: a socket and a config that leads to it, and nothing that an agent would find later."""

import contextlib
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from mldebug.config.schema import Config, effective_yaml
from mldebug.core.errors import UsageError
from mldebug_agents.web.listeners import SOCKET, open_unix

CONFIG = "mldebug.yaml"
EMPTY = "give --state-dir an empty folder, or leave it out"


@contextmanager
def place(wanted: Path | None, config: Config) -> Iterator[tuple[Path, socket.socket]]:
    """The config file by which `mldebug status --config` finds the replay, and the socket; both are gone afterwards."""
    with contextlib.ExitStack() as undo:
        folder = wanted or Path(tempfile.mkdtemp(prefix="mldebug-replay-"))
        if wanted is None:
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
        yield _furnished(folder, config, undo)


def _furnished(
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
        door = undo.enter_context(open_unix(folder))
        undo.callback((folder / SOCKET).unlink, missing_ok=True)
    except FileExistsError as error:
        raise UsageError(f"{file} is there already", EMPTY) from error
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}", EMPTY) from error
    return file, door
