"""Tells systemd the agent's state (READY, RELOADING, WATCHDOG, STOPPING) over $NOTIFY_SOCKET; does nothing without it.

Source: sd_notify(3).
"""

import contextlib
import os
import socket
import time
from collections.abc import Mapping

from mldebug.core.redact import clean
from mldebug.status.snapshot import Snapshot

MAX_STATUS = 200
MAX_NAMED = 3


class SystemdNotifier:
    """Sends states to the service manager; never blocks and never raises."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._status = ""

    def send(self, *states: str) -> None:
        """Send states as `READY=1` or `STATUS=…` to systemd, in one datagram."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        # systemd is busy: the next state replaces this one
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
            link.setblocking(False)
            link.sendto("\n".join(states).encode(), address)

    def status(self, text: str) -> None:
        """Send a status text to systemd, if it differs from the last one."""
        if text != self._status:
            self._status = text
            self.send(f"STATUS={text}")


def reloading() -> tuple[str, str]:
    """The states that begin a reload of a `Type=notify-reload` service; READY=1 ends it."""
    return "RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"


def status_text(snapshot: Snapshot) -> str:
    """One line for `systemctl status`: the runs, and what is wrong."""
    count = len(snapshot.runs)
    hanging = [run for run in snapshot.runs if run.incident]
    parts = [f"{count} {'run' if count == 1 else 'runs'}{_names(snapshot) if count else ''}"]
    parts += [f"incident {run.incident}: {run.verdict or 'being captured'}" for run in hanging]
    if snapshot.reports_waiting:
        parts.append(f"{snapshot.reports_waiting} reports wait for the state dir")
    return clean("; ".join(parts), MAX_STATUS)


def _names(snapshot: Snapshot) -> str:
    names = [run.name for run in snapshot.runs[:MAX_NAMED]]
    more = ["…"] if len(snapshot.runs) > MAX_NAMED else []
    return f" ({', '.join([*names, *more])})"
