"""The part of the storage desk that looks at filesystems: how full, how long they last, and which do not answer."""

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

DENIED = "this user may not see which files they have open"
ALLOW = "run the agent as root or as their user, or give it CAP_SYS_PTRACE"
_GLOB = re.compile(r"[*?\[{]")


class FilesystemCollector:
    """Every mount that a job uses, and those of `storage.paths`."""

    name = "filesystems"

    def __init__(self, context: Context, probe: MountClient) -> None:
        self._context, self._probe = context, probe
        self._past: dict[Key, FilesystemHistory] = {}
        self._earlier: dict[
            tuple[str, str, str], StoredHistory
        ] = {}  # of the agent before this one
        self._seen: list[FilesystemReading] = []
        self._gaps: dict[str, Gap] = {}
        self._before: dict[int, set[Key]] = {}  # what each rank used when we looked last
        self._where: dict[str, int] = {}  # mount ids of what is configured
        self.places: Mapping[str, Sequence[str]] = {}  # by job: where it saves and logs
        self.who_fills: Callable[[str], str] = lambda device: ""  # by major:minor, in a clause

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return self._context.config.storage.interval

    def look(self, now: float, jobs: Sequence[Job]) -> None:
        """Ask all mounts at once, in the probe child. Raises OSError where that is gone."""
        self._gaps = {}
        paths = self._configured()
        self._find(paths)
        found = used_mounts(self._context.host, jobs, paths, self._before, self._where, self.places)
        self._before = used_by(found)
        self._note_denied(jobs)
        places = [MountRequest(one.mount.id, one.path) for one in found.values()]
        answers = self._probe.ask(places)
        self._past = {key: past for key, past in self._past.items() if key in found}
        self._seen = [
            self._judge(now, one, asked) for one, asked in zip(found.values(), answers, strict=True)
        ]

    def memory(self) -> bytes:
        """What the next agent should know, as JSON. Not while it looks."""
        return encode_histories(self._past.items(), self._earlier.values())

    def recall(self, data: bytes) -> None:
        """What the agent before this one knew. Not while it looks."""
        self._earlier = decode_histories(data)

    def samples(self) -> Iterator[Measure]:
        """Sizes, shares, time left, and how many could not be asked."""
        worst = sorted(
            self._seen, key=lambda one: (one.asked.stuck, one.now.share if one.now else 0.0)
        )
        by_labels = {
            labels(one.used): one for one in worst
        }  # containers may mount two folders of one filesystem alike
        for seen in by_labels.values():
            yield from measures(seen)
        yield Measure(metric="mldebug_filesystem_unanswered", value=len(self.gaps()))

    def status(self) -> dict[str, tuple[Row, ...]]:
        """One row for each mount, the fullest first."""
        rows = [filesystem_row(seen) for seen in self._seen]
        return {"filesystems": tuple(sorted(rows, key=lambda row: -float(row["used_ratio"] or 0)))}

    def alarms(self) -> Iterator[StorageAlert]:
        """Mounts that are too full, will be soon, turned read-only, or do not answer."""
        for seen in self._seen:
            for alarm in self._alarms(seen):
                yield msgspec.structs.replace(alarm, uids=seen.used.uids)

    def _alarms(self, seen: FilesystemReading) -> Iterator[StorageAlert]:
        wanted = self._context.config.storage
        title = seen.used.title
        if seen.asked.stuck:
            yield stuck_alert(seen)
        if seen.turned_read_only:
            words = f"{title} has become read-only: the kernel does so after errors of the disk, unless somebody did"
            yield StorageAlert(kind="read_only", subject=title, sentence=words)
        if seen.now is not None:
            limits = (self._limit(seen.used), wanted.inode_limit)
            early = (wanted.full_within, wanted.saves_left)
            for alarm in filesystem.fullness_alerts(title, seen.now, limits, seen.ahead, early):
                yield _with(alarm, self.who_fills(seen.used.mount.device))

    def gaps(self) -> Sequence[Gap]:
        """Mounts that could not be asked, and limits that make no sense."""
        silent = [
            Gap(what=f"filesystem {one.used.title}", reason=one.asked.reason, pid=_pid(one.used))
            for one in self._seen
            if one.asked.reason
        ]
        return (*silent, *self._gaps.values())

    def _configured(self) -> tuple[str, ...]:
        """Folders of the configuration: of a pattern that part which is none."""
        config = self._context.config
        bare = (_GLOB.split(one)[0].rpartition("/")[0] if _GLOB.search(one) else one for one in config.checkpoints.paths)  # fmt: skip
        chosen = (*config.storage.paths, *config.storage.limits, *config.storage.usable, *bare)
        return tuple(dict.fromkeys(one for one in chosen if one.startswith("/")))

    def _find(self, paths: Sequence[str]) -> None:
        """Where they lie: a path may lead over links, and only who goes there knows. Not asked again where it hangs."""
        hanging = {one.used.mount.id for one in self._seen if one.asked.stuck}
        self._where = {path: at for path, at in self._where.items() if path in paths}
        free = [one for one in paths if self._where.get(one) not in hanging]
        root = os.fsencode(self._context.host.root)
        answers = self._probe.ask([MountRequest(0, os.fsencode(one), root=root) for one in free])
        for path, asked in zip(free, answers, strict=True):
            if not asked.reason:
                self._where[path] = asked.mount
            else:
                self._gaps[path] = Gap(what=f"folder {path} of the config", reason=asked.reason)

    def _note_denied(self, jobs: Sequence[Job]) -> None:
        """Whoever may not look into a process does not know where it writes: that is said, once for each job."""
        for job in jobs:
            ranks = hidden_ranks(self._context.host, job)
            if ranks:
                what = (
                    f"filesystems of {job.name or job.id}, {len(ranks)} of {len(job.ranks)} ranks"
                )
                self._gaps[job.id] = Gap(what=what, reason=DENIED, way_out=ALLOW, pid=ranks[0])

    def _judge(self, now: float, used: UsedMount, asked: MountAnswer) -> FilesystemReading:
        seen = FilesystemReading(used=used, asked=asked)
        if asked.space is None:
            return seen
        past = self._remembered(now, used)
        seen.turned_read_only = past.writable and asked.space.read_only
        past.writable = past.writable or not asked.space.read_only
        if asked.space.read_only or used.mount.fstype in IMAGES or not asked.space.size:
            return seen  # nobody fills it, or it does not tell: a tmpfs without a limit
        rules = self._context.config.storage.usable
        share = min(usable(rules, one, used.mount.fstype) for one in (used.name, *used.folders))
        seen.now = told = _fullness(asked.space, share)
        past.add(now, told.left, told.inodes_left)
        seen.ahead = (
            forecast(tuple(past.left), told.left),
            forecast(tuple(past.inodes), told.inodes_left),
        )
        return seen

    def _remembered(self, now: float, used: UsedMount) -> FilesystemHistory:
        past = self._past.setdefault(used.key, FilesystemHistory(printable_path(used.mount.source)))
        earlier = self._earlier.pop((*used.key, past.source), None)
        if earlier is not None:
            past.recall(now, earlier)
        return past

    def _limit(self, used: UsedMount) -> UsageLimit:
        """What is said of a folder there, of the mount point or above it; the most particular counts."""
        names = sorted((used.name, *used.folders), key=len)
        usual = min(default_limit(one) for one in names)
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
    """Of one rank, where the mount is not everyone's."""
    return min(used.ranks) if used.uids else None


def _fullness(space: Space, share: float) -> Fullness:
    return fullness(
        *(space.size, space.free, space.available), space.inodes, space.inodes_free, share
    )


def _with(alarm: StorageAlert, who: str) -> StorageAlert:
    if not who or alarm.kind not in ("too_full", "full_soon"):
        return alarm
    return msgspec.structs.replace(alarm, aside=who)
