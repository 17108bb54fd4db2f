"""Opens the listening sockets of the agent: TCP, and the Unix socket file in the state dir.

A socket address holds 107 bytes; a longer path is reached through a descriptor of its folder, by the client too.
"""

import contextlib
import errno
import getpass
import os
import platform
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mldebug.core.errors import UsageError
from mldebug.core.redact import clean
from mldebug.core.text import typed

SOCKET = "agent.sock"
MAX_PATH = 107  # bytes, of sun_path
PROBE_SECONDS = 1.0


def open_tcp(listen: str) -> socket.socket:
    """Listen on `host:port`. Raises UsageError where the address is in use or invalid."""
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # named as TCP, or asyncio leaves Nagle on and each answer on a kept connection waits 40 ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), int(port)))
        listener.listen(
            64
        )  # or a second agent on the port is noticed too late: by SO_REUSEADDR it may bind
    except (OSError, ValueError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"cannot listen on {listen}: {reason}",
            "set another agent.listen, or stop what is there",
        ) from error
    return listener


def open_unix(state_dir: Path, name: str = SOCKET) -> socket.socket:
    """Listen on the socket file, replacing one that a dead agent left. Raises UsageError where another program answers at
    it, OSError where the folder does not allow it.
    """
    if is_served(state_dir, name):
        raise UsageError(
            f"another program already serves {state_dir / name}",
            "stop it, or set another agent.state_dir",
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with reachable(state_dir, name) as path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listener.bind(path)
            os.chmod(path, 0o666)  # noqa: S103 - everybody may ask; SO_PEERCRED decides what he sees
        listener.listen(64)
    except OSError:
        listener.close()
        raise
    return listener


def is_served(state_dir: Path, name: str = SOCKET) -> bool:
    """Whether an agent answers at the socket; a killed agent leaves the file behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(PROBE_SECONDS)
        try:
            with reachable(state_dir, name) as path:
                link.connect(path)
        except OSError as error:
            return error.errno in (errno.EAGAIN, errno.EINPROGRESS) or isinstance(
                error, TimeoutError
            )
    return True


@contextmanager
def reachable(state_dir: Path, name: str = SOCKET) -> Iterator[str]:
    """A path to the socket that is short enough for a socket address."""
    path = str(state_dir / name)
    if len(os.fsencode(path)) <= MAX_PATH:
        yield path
        return
    folder = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{name}"
    finally:
        os.close(folder)


def way_in(state_dir: Path, config: Path | None) -> list[str]:
    """The lines that tell how to see the pages in a browser, with the commands to type."""
    path = state_dir / SOCKET
    host = clean(platform.node(), 80)
    if len(os.fsencode(path)) > MAX_PATH or ":" in str(path):
        to, then = "127.0.0.1:8080", f"type here: {typed('web --port 8080', config)}"
    else:
        to, then = str(path), "open http://localhost:8080/ there"
    return [
        "On your own machine type",
        "",
        f"  ssh -N -L 8080:{shlex.quote(to)} {host}",
        "",
        f"then {then}. You see what {getpass.getuser()} may see here if you log in as {getpass.getuser()}.",
        f"A browser on this node: {typed('web --open', config)}",
    ]
