"""The probe child: one thread for each mount that is being asked, none for one that has not come back.

A thread that hangs in a call stays there, at most `MOST_STUCK` of them; it is forgiven when its call returns.
"""

import contextlib
import os
import queue
import re
import socket
import threading
import time

from mldebug_agents.fsprobe.wire import Asked, Place, Reply, Round, Space, receive, send

MOST_STUCK = 16
AT_ONCE = 16  # threads besides those that hang
_MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)


def serve(connection: socket.socket) -> None:
    """Answer rounds until the other side hangs up."""
    asking = Asking()
    with contextlib.suppress(ConnectionError):
        while True:
            wanted = receive(connection, Round)
            send(connection, asking.round(wanted))
    os._exit(0)  # no thread that hangs keeps us


class Asking:
    """Remembers which mounts hang, from round to round."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[int, float] = {}  # mount -> when the call on it began

    def round(self, wanted: Round) -> Reply:
        """Ask all mounts; whoever has not answered when the time is over counts as stuck."""
        until = time.monotonic() + wanted.seconds
        stuck = set(self._hanging())
        free = [place for place in wanted.places if place.mount not in stuck]
        work: queue.SimpleQueue[Place] = queue.SimpleQueue()
        done: queue.SimpleQueue[Asked] = queue.SimpleQueue()
        for place in free if len(stuck) < MOST_STUCK else ():
            work.put(place)
        hands = min(AT_ONCE, len(free), MOST_STUCK - len(stuck))
        for _ in range(hands):
            threading.Thread(target=self._ask_all, args=(work, done, until), daemon=True).start()
        found: dict[int, Asked] = {}
        while hands > 0 and len(found) < len(free) and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                one = done.get(timeout=left)
                found[one.mount] = one
        return Reply(
            wanted.number,
            tuple(found.get(one.mount) or self._missed(one) for one in wanted.places),
        )

    def _hanging(self) -> dict[int, float]:
        with self._lock:
            return dict(self._since)

    def _missed(self, place: Place) -> Asked:
        since = self._hanging().get(place.mount)
        if since is None:
            return Asked(mount=place.mount, reason="there was no time left to ask it")
        hangs = time.monotonic() - since
        return Asked(mount=place.mount, reason="it does not answer", stuck=max(hangs, 0.001))

    def _ask_all(
        self, work: "queue.SimpleQueue[Place]", done: "queue.SimpleQueue[Asked]", until: float
    ) -> None:
        while time.monotonic() < until:
            try:
                place = work.get_nowait()
            except queue.Empty:
                return
            with self._lock:
                self._since[place.mount] = time.monotonic()
            try:
                asked = ask(place)
            finally:
                with self._lock:
                    del self._since[place.mount]
            done.put(asked)


def ask(place: Place) -> Asked:
    """Ask one mount. A mount point that is covered by another mount is that other mount: it is not judged."""
    try:
        fd = os.open(place.path, os.O_PATH | os.O_CLOEXEC)
        try:
            with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
                here = _MOUNT_ID.search(file.read())
            if here and int(here[1]) != place.mount:
                return Asked(mount=place.mount, reason="another mount lies over it")
            told = os.fstatvfs(fd)
        finally:
            os.close(fd)
    except OSError as error:
        return Asked(mount=place.mount, reason=error.strerror or str(error))
    return Asked(mount=place.mount, space=_space(told))


def _space(told: os.statvfs_result) -> Space:
    unit = told.f_frsize or told.f_bsize
    return Space(
        size=told.f_blocks * unit,
        free=told.f_bfree * unit,
        available=told.f_bavail * unit,
        inodes=told.f_files,
        inodes_free=told.f_favail,
        read_only=bool(told.f_flag & os.ST_RDONLY),
    )
