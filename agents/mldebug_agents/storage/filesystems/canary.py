"""Writes a small test file to configured folders, and to no others, through the mount child."""

import os
from collections.abc import Callable, Iterator, Sequence

from mldebug.core.model import Gap, Job
from mldebug.storage.filesystems.canary import CanaryWrite, sentence
from mldebug.storage.filesystems.latency import (
    GAP,
    MUCH,
    OperationTrend,
    OperationWindow,
    latency_alerts,
)
from mldebug.storage.filesystems.operation_counters import WRITE
from mldebug.storage.filesystems.state import Measure, Row, StorageAlert
from mldebug_agents.storage.child.client import MountClient
from mldebug_agents.storage.child.messages import CanaryFile, MountAnswer, MountRequest
from mldebug_agents.system.context import Context

SECONDS = 8.0  # for all folders; one that takes longer counts as stuck until it comes back


class CanaryCollector:
    """Writes small test files into the folders of `storage.canary.paths`, to see whether writing works."""

    name = "canary"

    def __init__(
        self, context: Context, probe: MountClient, written: Callable[[], float] = lambda: 0.0
    ) -> None:
        """`written`: bytes per second that all ranks write: beside a checkpoint a test write takes longer, and is no fault."""
        self._context, self._probe, self._all_write = context, probe, written
        self._trends: dict[str, OperationTrend] = {}
        self._now = 0.0
        self._file = f".mldebug-canary-{os.uname().nodename}-{os.geteuid()}"
        self._written: list[CanaryWrite] = []
        self._gaps: list[Gap] = []

    @property
    def interval(self) -> float:
        """Seconds between two test writes."""
        return self._context.config.storage.canary.interval

    def look(self, now: float, jobs: Sequence[Job]) -> None:
        """Write, sync and remove a test file in all configured folders at once. Raises OSError where the mount child has
        ended. `now`: unix time.
        """
        paths = self._context.config.storage.canary.paths
        trial = CanaryFile(self._file, self._size)
        root = os.fsencode(self._context.host.root)
        places = [MountRequest(0, os.fsencode(path), trial, root=root) for path in paths]
        answers = self._probe.ask(places, SECONDS)
        found = list(zip(paths, answers, strict=True))
        self._written = [_written(path, one) for path, one in found if one.wrote or one.stuck]
        self._now = now
        self._follow(self._written)
        self._gaps = [_gap(path, one) for path, one in found if not one.wrote and not one.stuck]

    def _follow(self, written: Sequence[CanaryWrite]) -> None:
        """Keep how long test writes take in each folder; those that fail tell nothing of it."""
        gap, load = max(GAP, 4 * self.interval), max(MUCH, self._all_write())
        names = self._context.config.storage.canary.paths
        self._trends = {
            path: self._trends.get(path) or OperationTrend(WRITE, gap) for path in names
        }
        for one in written:
            if one.outcome == "ok":
                self._trends[one.path].add(
                    self._now, OperationWindow(one.result.seconds, load, 0.0)
                )

    def samples(self) -> Iterator[Measure]:
        """For each folder: how many seconds the test write took, and 1 or 0 for failed or not."""
        for one in self._written:
            wrong = float(one.outcome != "ok")
            yield _measure("failed", one.path, wrong)
            yield _measure("seconds", one.path, one.stuck or one.result.seconds)
        for gap in self._gaps:
            yield _measure("failed", gap.what.removeprefix(_WHAT), 1.0)

    def status(self) -> dict[str, tuple[Row, ...]]:
        """The table "test_writes" for `mldebug status` and its page: one row for each folder in which a small file is written again and again,
        with how long that took.
        """
        rows = tuple(self._row(one) for one in self._written)
        return {"test_writes": rows} if rows else {}

    def alarms(self) -> Iterator[StorageAlert]:
        """Alerts about folders that cannot be written to, or where test writes take much longer than usual."""
        for path, trend in self._trends.items():
            if (slow := trend.slow(self._now)) is not None:
                yield from latency_alerts(path, [slow])
        for one in self._written:
            if one.outcome != "ok":
                words = sentence(one, self._size)
                yield StorageAlert(kind=f"canary_{one.outcome}", subject=one.path, sentence=words)

    def gaps(self) -> Sequence[Gap]:
        """Folders that could not be opened."""
        return self._gaps

    @property
    def _size(self) -> int:
        return self._context.config.storage.canary.size

    def _row(self, one: CanaryWrite) -> Row:
        return {
            "path": one.path,
            "outcome": one.outcome,
            "seconds": one.stuck or one.result.seconds,
            "line": sentence(one, self._size),
        }


_WHAT = "the test write to "


def _gap(path: str, answer: MountAnswer) -> Gap:
    return Gap(what=f"{_WHAT}{path}", reason=answer.reason, way_out="check storage.canary.paths")


def _written(path: str, answer: MountAnswer) -> CanaryWrite:
    if answer.wrote is None:
        return CanaryWrite(path=path, stuck=answer.stuck)
    return CanaryWrite(path=path, result=answer.wrote)


def _measure(name: str, path: str, value: float) -> Measure:
    return Measure(metric=f"mldebug_filesystem_canary_{name}", labels=(path,), value=value)
