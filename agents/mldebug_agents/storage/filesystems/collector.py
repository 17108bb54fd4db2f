"""Collects how full filesystems are, when they will be full, and which do not answer."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from mldebug.core.model import Gap, Job
from mldebug.storage.filesystems import fullness as filesystem
from mldebug.storage.filesystems.forecast import forecast
from mldebug.storage.filesystems.fullness import Fullness, fullness
from mldebug.storage.filesystems.history import (
    FilesystemHistory,
    StoredHistory,
    decode_histories,
    encode_histories,
)
from mldebug.storage.filesystems.limits import (
    UsageLimit,
    default_limit,
    nearest_rule,
    parse_limit,
    usable,
)
from mldebug.storage.filesystems.state import Measure, Row, StorageAlert
from mldebug_agents.storage.child.client import MountClient
from mldebug_agents.storage.child.messages import MountAnswer, MountRequest, Space
from mldebug_agents.storage.filesystems.mounts import (
    IMAGES,
    Key,
    UsedMount,
    hidden_ranks,
    printable_path,
    used_by,
    used_mounts,
)
from mldebug_agents.storage.filesystems.state import (
    FilesystemReading,
    filesystem_row,
    labels,
    measures,
    stuck_alert,
)
from mldebug_agents.system.context import Context

RECENT = 10.0  # seconds; a child that came since then is seen the next time
DENIED = "this user may not see which files they have open"
ALLOW = "run the agent as root or as their user, or give it CAP_SYS_PTRACE"
_GLOB = re.compile(r"[*?\[{]")


class FilesystemCollector:
    """Reads how full each mount is that a job uses, and those of `storage.paths`."""

    name = "filesystems"

    def __init__(
        self,
        context: Context,
        probe: MountClient,
        who_fills: Callable[[str], str] = lambda device: "",
    ) -> None:
        """`who_fills`: who writes most to a device, in words."""
        self._context, self._probe = context, probe
        self._who_fills = who_fills
        self._past: dict[Key, FilesystemHistory] = {}
        self._earlier: dict[
            tuple[str, str, str], StoredHistory
        ] = {}  # stored by the agent before this one
        self._readings: list[FilesystemReading] = []
        self._gaps: dict[str, Gap] = {}
        self._before: dict[int, set[Key]] = {}  # what each rank used at the last look
        self._where: dict[str, int] = {}  # mount ids of what is configured
        self._places: Mapping[str, Sequence[str]] = {}
        self._turn = 0

    @property
    def interval(self) -> float:
        """Seconds between two calls of `look`."""
        return self._context.config.storage.interval

    def look(self, now: float, jobs: Sequence[Job]) -> None:
        """Query all mounts at once through the mount child. Raises OSError where the child has ended. `now`: unix time."""
        self._gaps = {}
        paths = self._configured()
        self._find(paths)
        found = used_mounts(
            *(self._context.host, jobs, paths, self._before, self._where, self._places),
            workers=self._next_workers(jobs),
        )
        self._before = used_by(found)
        self._note_denied(jobs)
        places = [MountRequest(one.mount.id, one.path) for one in found.values()]
        answers = self._probe.ask(places)
        self._past = {key: past for key, past in self._past.items() if key in found}
        self._readings = [
            self._judge(now, one, answer)
            for one, answer in zip(found.values(), answers, strict=True)
        ]

    def _next_workers(self, jobs: Sequence[Job]) -> dict[int, int]:
        """Of each rank with children the next one in turn: to look at all of them each time would cost too much."""
        self._turn += 1
        children = self._context.host.children(RECENT)
        pids = (rank.pid for job in jobs for rank in job.ranks)
        return {pid: own[self._turn % len(own)] for pid in pids if (own := children.get(pid))}

    @property
    def used(self) -> tuple[UsedMount, ...]:
        """The filesystems that were looked at last. Safe from any thread."""
        return tuple(one.used for one in self._readings)

    def follow(self, places: Mapping[str, Sequence[str]]) -> None:
        """Look at the mounts of these folders, too: those of checkpoints and logs, by job. Not to be called while `look` runs."""
        self._places = places

    def memory(self) -> bytes:
        """The histories of use as JSON, to be stored. Not to be called while `look` runs."""
        return encode_histories(self._past.items(), self._earlier.values())

    def recall(self, data: bytes) -> None:
        """Use the stored histories of an earlier agent. Not to be called while `look` runs."""
        self._earlier = decode_histories(data)

    def samples(self) -> Iterator[Measure]:
        """Sizes, used shares and seconds until full of each mount, and how many mounts could not be queried."""
        worst = sorted(
            self._readings, key=lambda one: (one.answer.stuck, one.now.share if one.now else 0.0)
        )
        by_labels = {
            labels(one.used): one for one in worst
        }  # containers may mount two folders of one filesystem alike
        for reading in by_labels.values():
            yield from measures(reading)
        yield Measure(metric="mldebug_filesystem_unanswered", value=len(self.gaps()))

    def status(self) -> dict[str, tuple[Row, ...]]:
        """The table "filesystems" of `mldebug status --storage`: one row for each mount, the fullest first."""
        rows = [filesystem_row(reading) for reading in self._readings]
        return {"filesystems": tuple(sorted(rows, key=lambda row: -float(row["used_ratio"] or 0)))}

    def alarms(self) -> Iterator[StorageAlert]:
        """Mounts that are too full, will be soon, turned read-only, or do not answer."""
        for reading in self._readings:
            for alarm in self._alarms(reading):
                yield msgspec.structs.replace(alarm, uids=reading.used.uids)

    def _alarms(self, reading: FilesystemReading) -> Iterator[StorageAlert]:
        wanted = self._context.config.storage
        title = reading.used.title
        if reading.answer.stuck:
            yield stuck_alert(reading)
        if reading.turned_read_only:
            words = f"{title} has become read-only: the kernel does so after errors of the disk, unless somebody did"
            yield StorageAlert(kind="read_only", subject=title, sentence=words)
        if reading.now is not None:
            limits = (self._limit(reading.used), wanted.inode_limit)
            early = (wanted.full_within, wanted.saves_left)
            for alarm in filesystem.fullness_alerts(
                title, reading.now, limits, reading.ahead, early
            ):
                yield _with(alarm, self._who_fills(reading.used.mount.device))

    def gaps(self) -> Sequence[Gap]:
        """Mounts that could not be queried, and configured limits that make no sense."""
        silent = [
            Gap(what=f"filesystem {one.used.title}", reason=one.answer.reason, pid=_pid(one.used))
            for one in self._readings
            if one.answer.reason
        ]
        return (*silent, *self._gaps.values())

    def _configured(self) -> tuple[str, ...]:
        """All folders that the configuration names; of a pattern the folder before its first wildcard."""
        config = self._context.config
        bare = (_GLOB.split(path)[0].rpartition("/")[0] if _GLOB.search(path) else path for path in config.checkpoints.paths)  # fmt: skip
        chosen = (*config.storage.paths, *config.storage.limits, *config.storage.usable, *bare)
        return tuple(dict.fromkeys(one for one in chosen if one.startswith("/")))

    def _find(self, paths: Sequence[str]) -> None:
        """Find the mount ids of configured folders, through the mount child as links may hang. Hanging ones are not asked again."""
        hanging = {reading.used.mount.id for reading in self._readings if reading.answer.stuck}
        self._where = {path: at for path, at in self._where.items() if path in paths}
        free = [one for one in paths if self._where.get(one) not in hanging]
        root = os.fsencode(self._context.host.root)
        answers = self._probe.ask([MountRequest(0, os.fsencode(one), root=root) for one in free])
        for path, answer in zip(free, answers, strict=True):
            if not answer.reason:
                self._where[path] = answer.mount
            else:
                self._gaps[path] = Gap(what=f"folder {path} of the config", reason=answer.reason)

    def _note_denied(self, jobs: Sequence[Job]) -> None:
        """Add a gap for each job whose open files the agent may not see."""
        for job in jobs:
            ranks = hidden_ranks(self._context.host, job)
            if ranks:
                what = (
                    f"filesystems of {job.name or job.id}, {len(ranks)} of {len(job.ranks)} ranks"
                )
                self._gaps[job.id] = Gap(what=what, reason=DENIED, way_out=ALLOW, pid=ranks[0])

    def _judge(self, now: float, used: UsedMount, answer: MountAnswer) -> FilesystemReading:
        reading = FilesystemReading(used=used, answer=answer)
        if answer.space is None:
            return reading
        past = self._remembered(now, used)
        reading.turned_read_only = past.turns_read_only(answer.space.read_only)
        if answer.space.read_only or used.mount.fstype in IMAGES or not answer.space.size:
            return reading  # nobody fills it, or it has no size: a tmpfs without a limit
        rules = self._context.config.storage.usable
        share = min(usable(rules, one, used.mount.fstype) for one in (used.name, *used.folders))
        reading.now = now_full = _fullness(answer.space, share)
        past.add(now, now_full.left, now_full.inodes_left)
        reading.ahead = (
            forecast(tuple(past.left), now_full.left),
            forecast(tuple(past.inodes), now_full.inodes_left),
        )
        return reading

    def _remembered(self, now: float, used: UsedMount) -> FilesystemHistory:
        past = self._past.setdefault(used.key, FilesystemHistory(printable_path(used.mount.source)))
        earlier = self._earlier.pop((*used.key, past.source), None)
        if earlier is not None:
            past.recall(now, earlier)
        return past

    def _limit(self, used: UsedMount) -> UsageLimit:
        """The limit by the most special rule for the mount point, a folder on it, or one above."""
        names = sorted((used.name, *used.folders), key=len)
        usual = min(default_limit(name) for name in names)
        for path in reversed(names):
            text = nearest_rule(self._context.config.storage.limits, path)
            try:
                if text is not None:
                    return parse_limit(text)
            except ValueError as error:
                what = f"storage.limits for {path}"
                self._gaps[what] = Gap(what=what, reason=str(error), way_out="the default counts")
        return usual


def _pid(used: UsedMount) -> int | None:
    """The pid of one of its ranks, where only their users may see the mount; else None."""
    return min(used.ranks) if used.uids else None


def _fullness(space: Space, share: float) -> Fullness:
    return fullness(
        *(space.size, space.free, space.available), space.inodes, space.inodes_free, share
    )


def _with(alarm: StorageAlert, who: str) -> StorageAlert:
    if not who or alarm.kind not in ("too_full", "full_soon"):
        return alarm
    return msgspec.structs.replace(alarm, aside=who)
