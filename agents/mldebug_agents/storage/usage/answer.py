"""Makes the answer of `mldebug usage`: sums of what was counted, and which checkpoints could go. Looks into indexes of checkpoints, as `mldebug checkpoints` does."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from posixpath import basename, join

import msgspec

from mldebug.storage.checkpoints.history import CheckpointSeries, KnownCheckpoint, printable
from mldebug.storage.checkpoints.model import Completeness, Layout
from mldebug.storage.checkpoints.names import series_of, step_of
from mldebug.storage.checkpoints.retention import could_go, newest_whole
from mldebug.storage.usage.model import (
    CountedTree,
    FolderUsage,
    NeededCheckpoint,
    OldCheckpoint,
    Retention,
    StorageUsage,
)
from mldebug.storage.usage.tally import UsageTally, series_keys
from mldebug_agents.storage.checkpoints.series_reader import SeriesFiles, SeriesKey, SeriesReader
from mldebug_agents.storage.usage.known_runs import KnownRun, needed
from mldebug_agents.system.child.job_paths import OPERATOR
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable

JUDGE_SECONDS = 30.0  # for the indexes of all series
COUNTS = (1, 2, 3, 5)  # of kept checkpoints for which the sums are told
NOT_LOOKED_AT = "only the newest of a series are looked into"
_BEST = re.compile(rb'"best_model_checkpoint"\s*:\s*"([^"\\]{1,1024})"')
_BEST_BYTES = 4096


class _Series(msgspec.Struct):
    folder: str
    name: str
    checkpoints: tuple[KnownCheckpoint, ...]
    needed: dict[str, str]


class UsageAnswerer:
    """Judges the checkpoints that were counted, and puts the answer together. `name_of`: the name of a uid."""

    def __init__(
        self,
        reader: Reader,
        layouts: Sequence[Layout],
        tally: UsageTally,
        runs: Sequence[KnownRun],
        name_of: Callable[[int], str],
    ) -> None:
        self._reader, self._layouts = reader, layouts
        self._tally, self._runs, self._name_of = tally, runs, name_of
        self._usage = tally.checkpoints()
        self._printed = {(key[0], printable(key[1])): one for key, one in self._usage.items()}
        self.notes: list[str] = []

    def answer(self, trees: tuple[CountedTree, ...], keep: int, now: float) -> StorageUsage:
        """The whole answer. `keep`: how many whole checkpoints of each series stay in the list; `now`: unix time."""
        every = list(self._judged(now))
        lists = {count: tuple(self._old(every, count)) for count in {*COUNTS, keep}}
        whole = {one.folder + "/" + one.name for one in every if newest_whole(one.checkpoints) is None}  # fmt: skip
        return StorageUsage(
            now=now,
            trees=trees,
            users=self._tally.users(self._name_of),
            folders=self._folders(),
            keep=keep,
            could_go=tuple(sorted(lists[keep], key=lambda one: (-one.frees, one.checkpoint.ended))),
            retention=tuple(_retention(count, lists[count]) for count in sorted(lists)),
            needed=tuple(
                NeededCheckpoint(path=join(one.folder, name), why=why)
                for one in every
                for name, why in one.needed.items()
            ),
            series=len(every),
            without_whole=tuple(sorted(whole)),
            notes=tuple(self.notes),
        )

    def _folders(self) -> tuple[FolderUsage, ...]:
        runs: dict[str, tuple[str, ...]] = {}
        for run in self._runs:
            for folder in run.writes:
                runs[folder] = (*runs.get(folder, ()), run.title)
        return self._tally.folders(runs, self._name_of)

    def _old(self, every: Sequence[_Series], keep: int) -> Iterator[OldCheckpoint]:
        for series in every:
            for one in could_go(series.checkpoints, keep, series.needed):
                usage = self._printed.get((series.folder, one.name))
                if usage is None:  # it was not counted, so nobody knows what it would free
                    continue
                yield OldCheckpoint(
                    path=join(series.folder, one.name),
                    user=self._name_of(usage.uid),
                    bytes=usage.bytes,
                    frees=usage.own,
                    checkpoint=one,
                )

    def _judged(self, now: float) -> Iterator[_Series]:
        until = time.monotonic() + JUDGE_SECONDS
        late = 0
        for key in sorted(series_keys(self._usage)):
            if time.monotonic() > until:
                late += 1
                continue
            yield self._series(key, now)
        if late:
            self.notes.append(f"{late} series of checkpoints were not looked into: there was no more time")  # fmt: skip
        if self._tally.left_out:
            self.notes.append(f"{self._tally.left_out} more checkpoint files than are told one by one")  # fmt: skip

    def _series(self, key: SeriesKey, now: float) -> _Series:
        files = SeriesFiles(self._reader, "", key[0], OPERATOR)
        series = CheckpointSeries()
        look = SeriesReader(key, self._layouts).look("", files, frozenset(), now)
        series.look(now, look.readings, whole=look.whole)
        if not look.whole:
            self.notes.append(f"{key[0]}/{key[1]}: {look.trouble}")
        checkpoints = (*series.checkpoints, *self._older(key, series.checkpoints, now))
        links = (*self._tally.links.get(key[0], ()), *self._best(files, key[0], checkpoints))
        return _Series(*key, checkpoints, needed(checkpoints, key[0], self._runs, links))

    def _older(
        self, key: SeriesKey, known: Sequence[KnownCheckpoint], now: float
    ) -> Iterator[KnownCheckpoint]:
        """Those of the series that were counted and not looked into, as nobody knows whether they are whole."""
        names = {one.name for one in known}
        for (folder, name), usage in self._usage.items():
            if folder == key[0] and series_of(name) == key[1] and printable(name) not in names:
                yield KnownCheckpoint(
                    name=printable(name), state=Completeness.UNKNOWN, why=NOT_LOOKED_AT,
                    size=usage.bytes, ended=min(usage.newest, now), step=step_of(name),
                )  # fmt: skip

    def _best(
        self, files: SeriesFiles, folder: str, checkpoints: Sequence[KnownCheckpoint]
    ) -> Iterator[str]:
        """The checkpoint that a Trainer calls its best one, by the state that lies in the newest whole one."""
        newest = newest_whole(checkpoints)
        if newest is None:
            return
        path = f"{folder}/{newest.name}/trainer_state.json"
        got = files.read_from(path, 0, max_bytes=_BEST_BYTES)
        if not isinstance(got, Unreadable) and (best := _BEST.search(got.data)):
            yield join(folder, basename(best[1].decode(errors="replace").rstrip("/")))


def _retention(keep: int, old: Sequence[OldCheckpoint]) -> Retention:
    return Retention(keep=keep, frees=sum(one.frees for one in old), checkpoints=len(old))
