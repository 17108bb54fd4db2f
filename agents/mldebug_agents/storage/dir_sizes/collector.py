"""Sizes of the configured directories, for the storage monitor."""

import time
from collections.abc import Iterator, Sequence

from mldebug.core.model import Gap, Job
from mldebug.storage.dir_sizes import HOWS, STUCK, DirSize, dir_size_lines
from mldebug.storage.filesystems.state import Measure, Row, StorageAlert
from mldebug_agents.storage.dir_sizes.client import DirSizeClient
from mldebug_agents.storage.dir_sizes.messages import DirSizeRequest
from mldebug_agents.system.context import Context

INTERVAL = 2.0  # seconds between two looks at what the child has told


class DirSizeCollector:
    """The sizes of the directories in the section `trees`, as metrics, rows and alerts."""

    name = "trees"
    interval = INTERVAL

    def __init__(self, context: Context) -> None:
        self._context = context
        self._client = DirSizeClient(context.spawner, ())

    def look(self, now: float, jobs: Sequence[Job]) -> None:
        """Read the newest sizes from the child process that counts directories. `now`: unix time."""
        trees = self._context.config.trees
        self._client.count_only(
            [
                DirSizeRequest(
                    path=path,
                    root=self._context.host.root,
                    rescan=trees.rescan,
                    verify=trees.verify,
                    max_inodes=trees.max_inodes,
                )
                for path in dict.fromkeys(trees.paths)
            ]
        )
        self._client.tick()

    def samples(self) -> Sequence[Measure]:
        """Bytes and inodes of each directory, and how up to date they are (watched, counted again from time to time, and so on)."""
        return [one for state in self._client.states for one in _measures(state)]

    def status(self) -> dict[str, tuple[Row, ...]]:
        """The table "trees" of `mldebug status --storage`: one row for each directory."""
        states = self._client.states
        lines = dir_size_lines(states, time.time())
        rows = tuple(_row(one, line) for one, (line, _) in zip(states, lines, strict=True))
        return {"trees": rows} if rows else {}

    def alarms(self) -> Sequence[StorageAlert]:
        """An alert for each directory that does not answer."""
        stuck = tuple(state for state in self._client.states if state.how == STUCK)
        lines = dir_size_lines(stuck, time.time())
        return [
            StorageAlert(kind="stuck", subject=one.path, sentence=line)
            for one, (line, _) in zip(stuck, lines, strict=True)
        ]

    def gaps(self) -> Sequence[Gap]:
        """Directories that could be counted only in part, or not at all."""
        return [
            Gap(what=f"the size of {state.path}", reason=_reason(state))
            for state in self._client.states
            if state.lower_bound or state.how == STUCK or (state.inodes is None and state.why)
        ]


def _reason(one: DirSize) -> str:
    if one.how == STUCK:
        return "it does not answer"
    return one.why or f"{one.unread} of its entries could not be looked at"


def _row(one: DirSize, line: str) -> Row:
    return {
        "path": one.path,
        "how": one.how,
        "why": one.why,
        "bytes": one.bytes,
        "apparent_bytes": one.apparent_bytes,
        "inodes": one.inodes,
        "lower_bound": one.lower_bound,
        "at": one.at,
        "line": line,
    }


def _measures(one: DirSize) -> Iterator[Measure]:
    path = (one.path,)
    for how in HOWS:
        yield Measure(
            metric="mldebug_tree_state", labels=(one.path, how), value=float(how == one.how)
        )
    if one.inodes is None or one.bytes is None or one.apparent_bytes is None:
        return
    yield Measure(metric="mldebug_tree_bytes", labels=path, value=one.bytes)
    yield Measure(metric="mldebug_tree_apparent_bytes", labels=path, value=one.apparent_bytes)
    yield Measure(metric="mldebug_tree_inodes", labels=path, value=one.inodes)
    yield Measure(metric="mldebug_tree_unread_entries", labels=path, value=one.unread)
    yield Measure(metric="mldebug_tree_timestamp_seconds", labels=path, value=one.at)
    yield Measure(metric="mldebug_tree_lost_events", labels=path, value=one.overflows)
    yield Measure(metric="mldebug_tree_rescans", labels=path, value=one.rescans)
