"""What must survive a restart: the rhythm of each run and its open incident, in one SQLite file of the state dir."""

import contextlib
import queue
import sqlite3
import threading
from pathlib import Path

import msgspec

from mldebug.archive import Archive
from mldebug.incident import Incident
from mldebug.stall.pulse import StallMemory

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    job_id TEXT PRIMARY KEY, memory BLOB NOT NULL, incident BLOB, kept_at REAL NOT NULL DEFAULT (unixepoch())
)
"""
OLDEST = 30 * 86400  # seconds


class _Row(msgspec.Struct):
    memory: StallMemory
    incident: Incident | None = None


class Ledger:
    """Reads once at the start; writes go through a thread of its own, so a hung disk never stops the agent."""

    def __init__(self, state_dir: Path) -> None:
        self.archive = Archive(state_dir)
        self.lost = 0
        self._rows: dict[str, _Row] = {}
        self._queue: queue.Queue[tuple[str, bytes, bytes | None] | str | None] = queue.Queue(
            maxsize=1024
        )
        self._path = state_dir / "agent.sqlite"
        self._load()
        self._thread = threading.Thread(target=self._write_all, name="mldebug-ledger", daemon=True)
        self._thread.start()

    def memory(self, job_id: str) -> StallMemory | None:
        """What the watch of that run knew before our restart."""
        row = self._rows.get(job_id)
        return row.memory if row else None

    def incident(self, job_id: str) -> Incident | None:
        """The incident that was open then."""
        row = self._rows.get(job_id)
        return row.incident if row else None

    def keep(self, job_id: str, memory: StallMemory, incident: Incident | None) -> None:
        """Store the newest state of one run; counted as lost where the disk does not follow."""
        self._rows[job_id] = _Row(memory=memory, incident=incident)
        told = msgspec.json.encode(incident) if incident else None
        self._put((job_id, msgspec.json.encode(memory), told))

    def forget(self, job_id: str) -> None:
        """Drop a run that is over."""
        self._rows.pop(job_id, None)
        self._put(job_id)

    def close(self, timeout: float = 2.0) -> None:
        """Write what waits, for a while."""
        self._put(None)
        self._thread.join(timeout)

    def _put(self, item: "tuple[str, bytes, bytes | None] | str | None") -> None:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self.lost += 1

    def _load(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with contextlib.closing(self._open()) as link:
                rows = link.execute("SELECT job_id, memory, incident FROM runs").fetchall()
        except (OSError, sqlite3.Error):
            self.lost += 1
            return
        for job_id, memory, incident in rows:
            with contextlib.suppress(msgspec.MsgspecError):
                known = msgspec.json.decode(incident, type=Incident) if incident else None
                self._rows[job_id] = _Row(msgspec.json.decode(memory, type=StallMemory), known)

    def _open(self) -> sqlite3.Connection:
        link = sqlite3.connect(self._path, timeout=1.0, isolation_level=None)
        link.execute("PRAGMA journal_mode=WAL")
        link.execute(_SCHEMA)
        link.execute("DELETE FROM runs WHERE kept_at < unixepoch() - ?", (OLDEST,))
        return link

    def _write_all(self) -> None:
        link: sqlite3.Connection | None = None
        while (item := self._queue.get()) is not None:
            try:
                link = link or self._open()
                self._write(link, item)
            except (OSError, sqlite3.Error):
                self.lost += 1
                link = None

    def _write(self, link: sqlite3.Connection, item: tuple[str, bytes, bytes | None] | str) -> None:
        if isinstance(item, str):
            link.execute("DELETE FROM runs WHERE job_id = ?", (item,))
            return
        link.execute(
            "INSERT OR REPLACE INTO runs (job_id, memory, incident) VALUES (?, ?, ?)", item
        )
