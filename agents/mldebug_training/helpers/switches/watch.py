"""Looks at the folder of the switches in a thread, so that a file system that hangs blocks this thread and not the training.

It also writes which rank looks: into the folder, and as `/dev/shm/mldebug-PID-START.switch`, JSON with the folder's path, for the
agent and users on this node.
"""

from __future__ import annotations

import _thread
import atexit
import json
import os
import threading
import time

from mldebug_training.common import shared_files
from mldebug_training.common.own_file import OwnFile
from mldebug_training.common.signals import closed
from mldebug_training.helpers.switches.files import (
    POLLED,
    SAVE,
    SwitchReading,
    clear_up,
    look,
    make,
    take,
    write,
)
from mldebug_training.hook import ranks
from mldebug_training.hook.record import SIZE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SUFFIX = ".switch"
INTERVAL = 1.0  # seconds between two looks
WORD_EVERY = 5.0  # seconds between two words of whom it is that asks
OTHERS_WORD = 60.0  # a node whose folder has had no word for so long leaves its own
FIRST_LOOK = 5.0  # seconds that somebody waits for it
GOODBYE = 2.0  # seconds that the end of the process waits for a hung folder


class SwitchWatch:
    """Looks at one folder once a second. `last_reading`: the result of the last look; None before the first."""

    def __init__(self, folder: str, *, ours: bool, interval: float = INTERVAL) -> None:
        self.folder = folder
        self.last_reading: SwitchReading | None = None
        self.trouble = ""  # of taking a switch away
        self._ours = ours
        self._owner = os.geteuid() if ours else None
        self._interval = interval
        self._pid = 0
        self._to_remove: list[int] = []
        self._word: dict[str, Any] = {}
        self._worded = 0.0
        self._announced: tuple[str, OwnFile] | None = None

    def start(self) -> None:
        """Start the thread, unless this process has already."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self._first, self._ended, self._gone = (threading.Event() for _ in range(3))
        closed(_thread.start_new_thread, self._run, ())  # unlisted: a job may join all it finds
        atexit.register(self.close)

    def first_look(self, timeout: float = FIRST_LOOK) -> SwitchReading:
        """Return the first reading. If there is none after `timeout` seconds, return one without switches, whose `trouble`
        says that the folder hangs.
        """
        self._first.wait(timeout)
        return self.last_reading or SwitchReading(
            trouble=f"{self.folder} does not answer: its file system hangs"
        )

    def set_status(self, word: dict[str, Any]) -> None:
        """Set what is written into the folder about this rank. It is written at most every 5 seconds."""
        self._word = word

    def on_save_done(self, token: int) -> None:
        """Remove the save switch with this token from the folder at the next look."""
        self._to_remove.append(token)

    def close(self) -> None:
        """Stop looking and remove our files; where the folder hangs, give up after a short wait."""
        if self._pid == os.getpid() and not self._ended.is_set():
            self._ended.set()
            self._gone.wait(GOODBYE)
            self._withdraw()

    def _run(self) -> None:
        self.trouble = make(self.folder) if self._ours else ""
        refused = bool(self.trouble)
        self._quietly(self._announce)
        while True:
            self._quietly(self._refuse if refused else self._round)
            self._first.set()
            if self._ended.wait(self._interval):
                break
        self._quietly(self._last)
        self._gone.set()

    def _refuse(self) -> None:
        self.last_reading = SwitchReading(trouble=self.trouble)

    def _round(self) -> None:
        self.last_reading = look(self.folder, time.time(), self._owner, ours=self._ours)
        if self._owner is None:  # a folder that somebody puts in its place later is not obeyed
            self._owner = self.last_reading.owner
        self._tidy()
        now = time.monotonic()
        if self._word and now - self._worded > WORD_EVERY and self._writes_status():
            self._worded = now
            write(self.folder, POLLED, self._word)

    def _tidy(self) -> None:
        while self._to_remove:
            why = take(self.folder, SAVE, self._to_remove.pop())
            if why:
                self.trouble = f"{self.folder}/{SAVE} cannot be taken away: {why}; it counts once"

    def _writes_status(self) -> bool:
        """Rank 0 does always; elsewhere the first rank of a node that does not see rank 0's file."""
        if self._word.get("rank", 0) == 0:
            return True
        if os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID")) != "0":
            return False
        try:
            age = time.time() - os.stat(os.path.join(self.folder, POLLED)).st_mtime
        except FileNotFoundError:
            return True
        return age > OTHERS_WORD

    def _last(self) -> None:
        self._tidy()
        if self._ours:
            clear_up(self.folder)
        elif self._worded:
            write(self.folder, POLLED, {**self._word, "ended": time.time()})

    def _announce(self) -> None:
        _, size = ranks.rank_and_size()
        name = f"{shared_files.PREFIX}{os.getpid()}-{shared_files.start_ticks()}{SUFFIX}"
        path = os.path.join(shared_files.FOLDER, name)
        shared_files.sweep(shared_files.FOLDER)  # what a killed job has left
        file = OwnFile(shared_files.reserve(path, SIZE))
        self._announced = path, file
        content = json.dumps({"folder": os.path.realpath(self.folder), "world_size": size})
        file.write(content.encode()[:SIZE])

    def _withdraw(self) -> None:
        announced, self._announced = self._announced, None
        if announced:
            shared_files.remove(announced[0])
            announced[1].close()

    @staticmethod
    def _quietly(step: Any) -> None:
        try:
            step()
        except Exception:
            pass  # nothing of this may end the job
