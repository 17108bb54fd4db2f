"""AMD GPUs, by what amdgpu and amdkfd show in /sys, without ROCm or root. From recordings, not tried on a card."""

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec

from mldebug.hardware.gpu.excluded import ExcludedGpu
from mldebug.hardware.gpu.readings import (
    UNLISTED,
    GpuProcess,
    LostGpu,
    NodeGpus,
    NodeWatch,
)
from mldebug_agents.hardware.gpu.amdgpu import (
    FULL_FILES,
    LEAST_VRAM,
    POWER_FILES,
    VENDOR,
    WATCH_FILES,
    Texts,
    address,
    gpu_ids,
    identity,
    parse_full,
    parse_watch,
    sensor_files,
)
from mldebug_agents.hardware.gpu.errors import MissingLibraryError
from mldebug_agents.hardware.gpu.vendors import Vendor

MAX_CARDS = 64
MAX_PROCESSES = 4096
MAX_FILE = 8192
ERRORS = "_err_count"


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the AMD vendor: where the kernel's /sys is found."""

    # the folder that is /sys
    sysfs: str = "/sys"


class Card(NamedTuple):
    """A GPU of AMD. `folder`: below /sys; `uuid`: its stable name; `bus_id`: its PCI address."""

    folder: str
    uuid: str
    bus_id: str


class Amd:
    """All AMD GPUs of this node, in the order of their PCI addresses, as ROCm counts them."""

    def __init__(self, sysfs: str) -> None:
        self._root = sysfs.rstrip("/")
        self._known: dict[str, int] = {}  # uuid -> index
        self._cards: dict[str, Card] = {}
        self._loads: set[str] = set()  # uuids of those that have told their load
        self._alike: set[str] = set()  # unique ids that several cards have

    def watch(self) -> NodeWatch:
        """Read utilization and power of all GPUs. Raises MissingLibraryError where this node never had an AMD GPU."""
        started, cpu = time.monotonic(), time.process_time()
        found, lost = [], []
        for index, card in self._all():
            texts = _texts(card.folder, WATCH_FILES) if card.folder else {}
            if self._is_there(card, texts):
                observed = parse_watch(index, texts, _texts(_hwmon(card.folder), POWER_FILES))
                found.append(msgspec.structs.replace(observed, uuid=card.uuid))
            else:
                lost.append(_lost(index, card))
        return NodeWatch(at=time.time(), gpus=tuple(found), lost=tuple(lost), read_seconds=time.monotonic() - started, cpu_seconds=time.process_time() - cpu)  # fmt: skip

    def full(self) -> NodeGpus:
        """Read all values of all GPUs. Raises MissingLibraryError where this node never had an AMD GPU."""
        started, cpu = time.monotonic(), time.process_time()
        cards = self._all()
        memory = self._memory_by_gpu()
        ids = self._ids()
        found, lost = [], []
        for index, card in cards:
            texts = _texts(card.folder, FULL_FILES) if card.folder else {}
            if "mem_info_vram_total" in texts:
                processes = memory.get(ids.get(card.bus_id, ""), ()) if memory is not None and card.bus_id in ids else None  # fmt: skip
                sensors = _texts(_hwmon(card.folder), sensor_files())
                gpu = parse_full(index, texts, sensors, _errors(card.folder), processes)
                found.append(msgspec.structs.replace(gpu, uuid=card.uuid))
            else:
                lost.append(_lost(index, card))
        version = _text(f"{self._root}/module/amdgpu/version").strip()
        return NodeGpus(at=time.time(), driver_version=version, gpus=tuple(found), lost=tuple(lost), read_seconds=time.monotonic() - started, cpu_seconds=time.process_time() - cpu)  # fmt: skip

    def leave_alone(self, these: tuple[ExcludedGpu, ...]) -> None:
        """Do nothing: entries come only from Xids, which are NVIDIA's, and reading the files of /sys never harms a GPU."""

    def close(self) -> None:
        """Does nothing: no file is held open."""

    def _is_there(self, card: Card, texts: Texts) -> bool:
        """Whether a card can be read. The load of one that is being reset cannot; one that never told it may be a virtual function."""
        if "gpu_busy_percent" in texts:
            self._loads.add(card.uuid)
            return True
        return card.uuid not in self._loads and bool(_text(f"{card.folder}/mem_info_vram_total"))

    def _all(self) -> list[tuple[int, Card]]:
        """Every GPU that is here, and those that were; a number stays with its GPU. One that is gone has no folder."""
        here = {card.uuid: card for card in self._listed()}
        if not here and not self._known:
            raise MissingLibraryError("no AMD GPU: no card of amdgpu in /sys/class/drm")
        for uuid in here:
            self._known.setdefault(uuid, len(self._known))
        self._cards |= here
        return [(index, here.get(uuid, self._cards[uuid]._replace(folder=""))) for uuid, index in self._known.items()]  # fmt: skip

    def _listed(self) -> list[Card]:
        found = []
        drm = f"{self._root}/class/drm"
        for name in _names(drm):
            if name.startswith("card") and name[4:].isdecimal():
                folder = f"{drm}/{name}/device"
                texts = _texts(folder, ("vendor", "unique_id", "uevent", "mem_info_vram_total"))
                size = texts.get("mem_info_vram_total", "").strip()
                large = not size.isdecimal() or int(size) >= LEAST_VRAM
                if texts.get("vendor", "").strip() == VENDOR and address(texts) and ((large and size) or self._was(texts)):  # fmt: skip
                    found.append(Card(folder, identity(texts), address(texts)))
        return self._with_own_uuids(sorted(found, key=lambda card: card.bus_id)[:MAX_CARDS])

    def _was(self, texts: Texts) -> bool:
        return any(card.bus_id == address(texts) for card in self._cards.values())

    def _with_own_uuids(self, cards: list[Card]) -> list[Card]:
        """Cards that have one unique id, as several virtual functions of one chip may, are called by their addresses as well, from then on."""
        self._alike |= {name for name, count in Counter(one.uuid for one in cards).items() if count > 1}  # fmt: skip
        return [
            one._replace(uuid=f"{one.uuid}-{one.bus_id}") if one.uuid in self._alike else one
            for one in cards
        ]

    def _ids(self) -> dict[str, str]:
        nodes = f"{self._root}/class/kfd/kfd/topology/nodes"
        return gpu_ids((_text(f"{nodes}/{name}/gpu_id"), _text(f"{nodes}/{name}/properties")) for name in _names(nodes))  # fmt: skip

    def _memory_by_gpu(self) -> dict[str, tuple[GpuProcess, ...]] | None:
        """By id of the GPU: the processes that compute there, as amdkfd lists them; None where it does not."""
        folder = f"{self._root}/class/kfd/kfd/proc"
        if not os.path.isdir(folder):
            return None
        found: dict[str, list[GpuProcess]] = {}
        for pid in [name for name in _names(folder) if name.isdecimal()][:MAX_PROCESSES]:
            for name in _names(f"{folder}/{pid}"):
                size = _text(f"{folder}/{pid}/{name}").strip() if name.startswith("vram_") else ""
                if size.isdecimal() and int(size):
                    one = GpuProcess(pid=int(pid), memory_bytes=int(size))
                    found.setdefault(name.removeprefix("vram_"), []).append(one)
        return {gpu: tuple(some) for gpu, some in found.items()}


def _lost(index: int, card: Card) -> LostGpu:
    reason = "its files cannot be read: it is being reset, or off the bus" if card.folder else "amdgpu does not list it any more"  # fmt: skip
    return LostGpu(index=index, reason=reason, uuid=card.uuid, bus_id=card.bus_id, code="" if card.folder else UNLISTED)  # fmt: skip


def _errors(folder: str) -> dict[str, str]:
    """Text of each block's counter of errors, by block."""
    names = [name for name in _names(f"{folder}/ras") if name.endswith(ERRORS)]
    texts = _texts(f"{folder}/ras", names)
    return {name.removesuffix(ERRORS): text for name, text in texts.items()}


def _hwmon(folder: str) -> str:
    """The folder of the card's sensors: amdgpu's own, where something else below the card has some as well."""
    places = [f"{folder}/hwmon/{name}" for name in _names(f"{folder}/hwmon")]
    own = (place for place in places[1:] and places if _text(f"{place}/name").strip() == "amdgpu")
    return next(own, places[0] if places else "")


def _texts(folder: str, names: Iterable[str]) -> dict[str, str]:
    return dict(_readable(folder, names)) if folder else {}


def _readable(folder: str, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        # this driver does not tell it
        with suppress(OSError), open(f"{folder}/{name}", "rb") as file:
            yield name, file.read(MAX_FILE).decode(errors="replace")


def _text(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return _texts(folder, (name,)).get(name, "")


def _names(folder: str) -> list[str]:
    with suppress(OSError):  # a node without such devices has no such folder
        return sorted(os.listdir(folder))
    return []


def create(options: Options) -> Vendor:
    """Build the reader of AMD's GPUs; reads no GPU yet."""
    return Amd(options.sysfs)
