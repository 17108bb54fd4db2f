"""The GPUs that a node should have, remembered so that a missing one is named.

Can be stored, so it survives agent and reboot.

What is remembered belongs to one view: an agent in a container sees some GPUs only, and with
another set of devices it learns anew. A reboot changes nothing: a GPU that does not come back after
one is what matters. A board moved to another slot is known by its uuid; another board in the same
slot replaces the old one. Where the driver cannot be asked at all, nothing is missing and nothing
is known.

A GPU that does not answer is not gone: the driver may be slow, or the agent may not touch it after
an Xid. It is gone where the driver says that it is lost, or lists the others without it in two
readings in a row.
"""

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from mldebug.core.model import MeasuredData
from mldebug.hardware.gpu.readings import LOST, UNLISTED, GpuReading, LostGpu, NodeGpus

FORGET_AFTER = 7 * 86_400.0
"""Seconds after which a GPU that is gone is no longer expected: somebody took it out."""
MAX_GPUS = 256
NOT_LISTED = "the driver does not list it"


class Absence(StrEnum):
    """How a GPU is absent that was present before."""

    SILENT = "silent"
    UNLISTED = "unlisted"  # for one look: that proves nothing
    GONE = "gone"  # until it answers again


class KnownGpu(MeasuredData, frozen=True, kw_only=True):
    """One GPU that has answered a full read before."""

    uuid: str
    bus_id: str = ""
    index: int = 0
    name: str = ""
    links: tuple[int, ...] = ()  # NVLinks that were up once


class MissingGpu(MeasuredData, frozen=True, kw_only=True):
    """A GPU that has answered before and is not there now, or does not answer."""

    gpu: KnownGpu
    since: float  # unix: when it was first missed
    reason: str  # "GPU is lost"; "the driver does not list it"


class GpuCount(MeasuredData, frozen=True, kw_only=True):
    """How many GPUs are present, which ones are missing, and which do not answer."""

    readable: bool = True
    present: int = 0
    expected: int = 0
    missing: tuple[MissingGpu, ...] = ()  # by index
    silent: tuple[MissingGpu, ...] = ()  # they do not answer: they may be there
    news: tuple[str, ...] = ()  # what changed since the look before, one sentence each


class ExpectedGpus(msgspec.Struct, kw_only=True):
    """The GPUs that this node is expected to have, remembered over restarts."""

    view: str = ""
    known: dict[str, KnownGpu] = {}  # by uuid
    missing_since: dict[str, float] = {}  # by uuid
    absent: dict[str, Absence] = {}  # by uuid: at the last look

    def look(self, node: NodeGpus, *, view: str = "", configured: int | None = None) -> GpuCount:
        """Compare a full reading with the GPUs that are remembered, and remember those of the reading.

        `view`: identifies what this agent may see (its container, its device list); another one
        begins anew. `configured`: how many GPUs there must be, from the configuration.
        """
        if not node.gpus and not node.lost:
            return GpuCount(readable=False, expected=configured or len(self.known))
        news = list(self._enter(view))
        news += self._remember(node)
        away = tuple(self._miss(node, news))
        missing = tuple(one for one in away if self.absent[one.gpu.uuid] is Absence.GONE)
        silent = tuple(one for one in away if one not in missing)
        unknown = tuple(_never_seen(lost, node.at) for lost in self._strangers(node))
        self._forget(node.at)
        enough = configured is not None and len(node.gpus) >= configured
        expected = configured if configured is not None else len(self.known)
        return GpuCount(
            present=len(node.gpus),
            expected=expected,
            missing=() if enough else missing,
            silent=() if enough else (*silent, *unknown),
            news=tuple(news),
        )

    def accept(self, node: NodeGpus) -> None:
        """Expect from now on only the GPUs of this reading, and the NVLinks that are up in it.

        Missing ones are forgotten.
        """
        self.known = {gpu.uuid: _known(gpu) for gpu in node.gpus if gpu.uuid in self.known}
        self.missing_since, self.absent = {}, {}

    def links_once_up(self, uuid: str) -> tuple[int, ...]:
        """The numbers of a GPU's NVLinks that were up in any reading."""
        one = self.known.get(uuid)
        return one.links if one else ()

    def _enter(self, view: str) -> Iterator[str]:
        if view != self.view and self.known:
            self.known, self.missing_since, self.absent = {}, {}, {}
            yield "the agent sees another set of devices: the GPUs of the node are learned anew"
        self.view = view

    def _remember(self, node: NodeGpus) -> Iterator[str]:
        """Remember all that answer; say who is new, back, moved or replaced."""
        first = not self.known
        for gpu in node.gpus[:MAX_GPUS]:
            before = self.known.get(gpu.uuid)
            now = _known(gpu, before.links if before else ())
            self.absent.pop(gpu.uuid, None)
            since = self.missing_since.pop(gpu.uuid, None)
            if since is not None:
                yield f"{_name(now)} is back after {node.at - since:.0f} s"
            elif before is None and not first:
                yield from self._new(now)
            elif before is not None and before.bus_id != now.bus_id:
                yield f"{_name(now)} moved there from {before.bus_id}"
            self.known[gpu.uuid] = now

    def _new(self, now: KnownGpu) -> Iterator[str]:
        """One never seen: in a slot that held another board it takes that one's place."""
        old = next(
            (one for one in self.known.values() if now.bus_id and one.bus_id == now.bus_id), None
        )
        if old is None:
            yield f"{_name(now)} is new"
            return
        del self.known[old.uuid]
        self.missing_since.pop(old.uuid, None)
        self.absent.pop(old.uuid, None)
        yield f"{_name(now)} replaces {old.uuid}"

    def _miss(self, node: NodeGpus, news: list[str]) -> Iterator[MissingGpu]:
        present = {gpu.uuid for gpu in node.gpus}
        for uuid, one in sorted(self.known.items(), key=lambda item: item[1].index):
            if uuid in present:
                continue
            lost = next((lost for lost in node.lost if _is_it(lost, one)), None)
            reason = lost.reason if lost and lost.reason else node.unread or NOT_LISTED
            before = self.absent.get(uuid)
            now = self.absent[uuid] = _absence(before, lost, bool(node.gpus) and not node.unread)
            if now is Absence.GONE and before is not Absence.GONE:
                news.append(f"{_name(one)} is gone: {reason}")
            elif before is None:
                news.append(f"{_name(one)} does not answer: {reason}")
            since = self.missing_since.setdefault(uuid, node.at)
            yield MissingGpu(gpu=one, since=since, reason=reason)

    def _strangers(self, node: NodeGpus) -> Iterator[LostGpu]:
        """GPUs that the driver counts, that never answered and that may do so."""
        for lost in node.lost:
            if lost.code != LOST and not any(_is_it(lost, one) for one in self.known.values()):
                yield lost

    def _forget(self, at: float) -> None:
        for uuid, since in list(self.missing_since.items()):
            if at - since > FORGET_AFTER:
                del self.missing_since[uuid]
                self.known.pop(uuid, None)
                self.absent.pop(uuid, None)


def _absence(before: Absence | None, lost: LostGpu | None, others: bool) -> Absence:
    """`others`: were the other GPUs read? A driver that lists none at all has not been read well."""
    if before is Absence.GONE or (lost is not None and lost.code == LOST):
        return Absence.GONE
    if not others or (lost is not None and lost.code != UNLISTED):
        return Absence.SILENT
    return Absence.UNLISTED if before is not Absence.UNLISTED else Absence.GONE


def _known(gpu: GpuReading, links: tuple[int, ...] = ()) -> KnownGpu:
    up = {link.link for link in gpu.nvlinks if link.up}
    return KnownGpu(
        uuid=gpu.uuid,
        bus_id=gpu.bus_id,
        index=gpu.index,
        name=gpu.name,
        links=tuple(sorted({*links, *up})),
    )


def _never_seen(lost: LostGpu, at: float) -> MissingGpu:
    gpu = KnownGpu(uuid=lost.uuid, bus_id=lost.bus_id, index=lost.index)
    return MissingGpu(gpu=gpu, since=at, reason=lost.reason)


def _is_it(lost: LostGpu, one: KnownGpu) -> bool:
    if lost.uuid or one.bus_id == "":
        return lost.uuid == one.uuid
    return lost.bus_id == one.bus_id if lost.bus_id else lost.index == one.index


def _name(one: KnownGpu) -> str:
    """`GPU 3 (00000000:3B:00.0, GPU-…)`."""
    return f"GPU {one.index} ({', '.join(part for part in (one.bus_id, one.uuid) if part)})"
