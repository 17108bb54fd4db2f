"""Talk to systemd: READY, WATCHDOG, STOPPING over $NOTIFY_SOCKET; silent where there is none. Source: sd_notify(3)."""

import contextlib
import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends states to the service manager; never blocks and never raises."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        usec = environ.get("WATCHDOG_USEC", "")
        self.watchdog_seconds = int(usec) / 1e6 if usec.isdigit() else 0.0

    def send(self, *states: str) -> None:
        """Send `READY=1`, `STATUS=…` and the like in one datagram."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
            link.setblocking(False)
            link.sendto("\n".join(states).encode(), address)
