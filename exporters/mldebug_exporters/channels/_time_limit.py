"""A time limit for a whole conversation over a socket.

A socket's own timeout holds for each read, so a server that sends one byte now and then never
exceeds it.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

TIMES = 3  # timeouts of one step that a whole conversation may take


@contextlib.contextmanager
def limit(seconds: float, link: Callable[[], socket.socket | None]) -> Iterator[None]:
    """Shut down the socket that `link` returns if the block takes longer than `seconds`; a read in the block then gets an OSError or end of data."""
    timer = threading.Timer(seconds, _cut, (link,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cut(link: Callable[[], socket.socket | None]) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        if (open_one := link()) is not None:
            open_one.shutdown(socket.SHUT_RDWR)
