"""The GPUs that a node should have: remembered, so that one that is gone is named. Serialisable: survives agent and reboot.

What is remembered belongs to one view: an agent in a container sees some GPUs only, and with another set of devices it
learns anew. A reboot changes nothing: the GPU that does not come back after one is the one that matters. A board moved to
another slot is known by its uuid; another board in the same slot replaces the old one. Where the driver cannot be asked at
all, nothing is missing and nothing is known.
"""

from collections.abc import Iterator

import msgspec

from mldebug.gpus.readings import LostGpu, NodeGpus
from mldebug.model import Noun

FORGET_AFTER = 7 * 86_400.0
"""Seconds after which a GPU that is gone is no longer expected: somebody took it out."""
MAX_GPUS = 256


class KnownGpu(Noun, frozen=True, kw_only=True):
    """One GPU that was seen."""

    uuid: str
    bus_id: str = ""
    index: int = 0
    name: str = ""
    seen_at: float = 0.0  # unix, the last time


class MissingGpu(Noun, frozen=True, kw_only=True):
    """One that was seen and is not there now."""

    gpu: KnownGpu
    since: float  # unix: when it was first missed
    reason: str  # "GPU is lost"; "the driver does not list it"


class GpuCount(Noun, frozen=True, kw_only=True):
    """How many GPUs are there, and which are not."""

    readable: bool = True
    present: int = 0
    expected: int = 0
    missing: tuple[MissingGpu, ...] = ()  # by index
    news: tuple[str, ...] = ()  # what changed since the look before, one sentence each


class ExpectedGpus(msgspec.Struct, kw_only=True):
    """The memory."""

    view: str = ""
    known: dict[str, KnownGpu] = {}  # by uuid
    missing_since: dict[str, float] = {}  # by uuid

    def look(self, seen: NodeGpus, *, view: str = "", configured: int | None = None) -> GpuCount:
        """Compare a full read with what is remembered, and remember it.

        `view`: what decides which devices this agent may see (its container, its device list); `configured`: how many
        there must be, where somebody said so.
        """
        if not seen.gpus and not seen.lost:
            return GpuCount(readable=False, expected=configured or len(self.known))
        news = list(self._enter(view))
        news += self._meet(seen)
        missing = tuple(self._miss(seen, news))
        self._forget(seen.at)
        enough = configured is not None and len(seen.gpus) >= configured
        expected = configured if configured is not None else len(self.known)
        return GpuCount(
            present=len(seen.gpus),
            expected=expected,
            missing=() if enough else missing,
            news=tuple(news),
        )

    def accept(self, seen: NodeGpus) -> None:
        """What is there now is what there should be."""
        present = {gpu.uuid for gpu in seen.gpus}
        self.known = {uuid: one for uuid, one in self.known.items() if uuid in present}
        self.missing_since = {}

    def _enter(self, view: str) -> Iterator[str]:
        if view != self.view and self.known:
            self.known, self.missing_since = {}, {}
            yield "the agent sees another set of devices: the GPUs of the node are learned anew"
        self.view = view

    def _meet(self, seen: NodeGpus) -> Iterator[str]:
        """Remember all that answer; say who is new, back, moved or replaced."""
        first = not self.known
        for gpu in seen.gpus[:MAX_GPUS]:
            before = self.known.get(gpu.uuid)
            now = KnownGpu(
                uuid=gpu.uuid, bus_id=gpu.bus_id, index=gpu.index, name=gpu.name, seen_at=seen.at
            )
            since = self.missing_since.pop(gpu.uuid, None)
            if since is not None:
                yield f"{_name(now)} is back after {seen.at - since:.0f} s"
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
        yield f"{_name(now)} replaces {old.uuid}"

    def _miss(self, seen: NodeGpus, news: list[str]) -> Iterator[MissingGpu]:
        present = {gpu.uuid for gpu in seen.gpus}
        for uuid, one in sorted(self.known.items(), key=lambda item: item[1].index):
            if uuid in present:
                continue
            reason = next((lost.reason for lost in seen.lost if _is_it(lost, one)), "")
            since = self.missing_since.get(uuid)
            if since is None:
                since = self.missing_since[uuid] = seen.at
                news.append(f"{_name(one)} is gone: {reason or 'the driver does not list it'}")
            yield MissingGpu(gpu=one, since=since, reason=reason or "the driver does not list it")

    def _forget(self, at: float) -> None:
        for uuid, since in list(self.missing_since.items()):
            if at - since > FORGET_AFTER:
                del self.missing_since[uuid]
                self.known.pop(uuid, None)


def _is_it(lost: LostGpu, one: KnownGpu) -> bool:
    if lost.uuid or one.bus_id == "":
        return lost.uuid == one.uuid
    return lost.bus_id == one.bus_id if lost.bus_id else lost.index == one.index


def _name(one: KnownGpu) -> str:
    """`GPU 3 (00000000:3B:00.0, GPU-…)`."""
    return f"GPU {one.index} ({', '.join(part for part in (one.bus_id, one.uuid) if part)})"
