"""The history of probes for the main loop: the file that probes write is read again when it has changed."""

import errno
import time
from pathlib import Path

import msgspec

from mldebug.core.errors import EvidenceError
from mldebug.probes.history import JudgedSeries, current, judge_all
from mldebug.status.snapshot import Snapshot
from mldebug_agents.probes.history.store import MAX_BYTES, NAME, unpack
from mldebug_agents.system.child.job_paths import OPERATOR
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable
from mldebug_agents.system.workers import Result, Worker

WORKER = "probes"
EVERY, DEADLINE = 10.0, 20.0
MOST = 200  # series that are shown: shifted ones, then those that were measured last


class ProbeHistoryReader:
    """Reads the history through the reader child, since the state dir may hang. For one worker thread."""

    def __init__(self, state_dir: Path, reader: Reader) -> None:
        self._path, self._reader = str(state_dir.absolute() / NAME), reader
        self._version: tuple[int, float] | None = None
        self._judged: tuple[JudgedSeries, ...] = ()

    def look(self, _: object) -> tuple[JudgedSeries, ...]:
        """All series of results, each judged; empty where no probe has run. Raises EvidenceError where the history cannot
        be read.
        """
        tail = self._reader.read_tail(self._path, rights=OPERATOR, max_bytes=1)
        if isinstance(tail, Unreadable):
            self._version = None
            if tail.errno == errno.ENOENT:
                return ()
            raise EvidenceError(f"{NAME}: {tail.reason}")
        if (tail.size, tail.mtime) != self._version:
            self._judged = self._read()
            self._version = (tail.size, tail.mtime)
        return self._judged

    def _read(self) -> tuple[JudgedSeries, ...]:
        content = self._reader.read_file(self._path, rights=OPERATOR, max_bytes=MAX_BYTES)
        if isinstance(content, Unreadable):
            raise EvidenceError(f"{NAME}: {content.reason}")
        return current(judge_all(unpack(content)))[:MOST]


class ProbeHistoryMonitor:
    """The history of probes on this node. Belongs to the main loop's thread."""

    def __init__(self, worker: Worker) -> None:
        """`worker`: has a `ProbeHistoryReader` look."""
        self.worker = worker
        self._due = 0.0
        self._series: tuple[JudgedSeries, ...] | None = None

    def tick(self) -> None:
        """Have the worker read the stored results of earlier probes again, if that is due. Does not wait for it."""
        now = time.monotonic()
        if now >= self._due and not self.worker.busy:
            self._due = now + EVERY
            self.worker.order(None)

    def on_result(self, result: Result) -> bool:
        """Handle the result of the worker; after an error the history is shown as empty. False where the result comes from
        another worker.
        """
        if result.worker == WORKER:
            self._series = result.value
        return result.worker == WORKER

    def show(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the judged series and the state of the worker added."""
        sources = (*snapshot.sources, self.worker.state())
        return msgspec.structs.replace(snapshot, probes=self._series, sources=sources)
