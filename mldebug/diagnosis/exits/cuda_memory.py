"""The figures in an "out of memory" error: bytes requested, free, held by which process, and fragmented. Pure.

torch writes since 1.0 `Tried to allocate A (GPU N; C total capacity; A already allocated; F free; …)` and since 2.1
sentences (`GPU N has a total capacity of C of which F is free. …`). The last figure of the first form changed its meaning:
`cached` (1.0 to 1.3) leaves out what is allocated, `reserved in total` (1.4 to 2.0) contains it. ROCm and XPU say the same
with another first word. `CUDA error: out of memory` comes from outside torch's allocator and tells no figure; so do NCCL
(`Cuda failure 2 'out of memory'`) and the libraries of CUDA, whose `…_STATUS_ALLOC_FAILED` is mostly, but not always, the
GPU's memory.
"""

import re
from enum import StrEnum

from mldebug.core.model import MeasuredData

_HEAD = re.compile(
    r"\b(?P<kind>CUDA|HIP|XPU|MPS) (?:(?:driver )?error: )?out of memory|cuda runtime error \(2\)"
    r"|\b(?P<nccl>Cuda|CUDA|HIP|Hip) failure:? (?:\d{1,4} )?'out of memory'"
    r"|\b(?P<library>CUBLAS|CUDNN|CUSOLVER|CUSPARSE|HIPBLAS)_STATUS_ALLOC_FAILED\b"
)
_LIBRARIES = {
    "CUBLAS": "cuBLAS",
    "CUDNN": "cuDNN",
    "CUSOLVER": "cuSOLVER",
    "CUSPARSE": "cuSPARSE",
    "HIPBLAS": "hipBLAS",
}
_SIZE = r"(\d{1,24}(?:\.\d{1,6})?) ?(bytes|[KMGT]i?B|B)\b"
UNITS = {"bytes": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20,
          "GiB": 2**30, "TiB": 2**40}  # fmt: skip
_DEVICE = re.compile(r"\bGPU (\d{1,4})(?:;| has a total)")
_REQUESTED = re.compile(rf"Tried to allocate {_SIZE}")
_CAPACITY = re.compile(rf"{_SIZE} total capacity|total capaci?ty of {_SIZE}")  # 2.1 wrote `capacty`
_FREE = re.compile(rf"{_SIZE} free|of which {_SIZE} is free")
_ALLOCATED = re.compile(
    rf"{_SIZE} already allocated|Of the allocated memory {_SIZE} is allocated by PyTorch"
)
_CACHED = re.compile(rf"{_SIZE} cached|{_SIZE} is reserved by PyTorch but unallocated")
_RESERVED = re.compile(rf"{_SIZE} reserved in total by PyTorch")
_LIMIT = re.compile(rf"{_SIZE} allowed")
_OWN = re.compile(rf"this process has {_SIZE} memory in use")
_PROCESS = re.compile(rf"\bProcess (\d{{1,10}}) has {_SIZE} memory in use")
_SETTING = re.compile(r"PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF")
LONGEST = 16_384  # characters of a message
ABSURD = 2**60  # NVML gives "not available" as a number near 2**64
MUCH = 0.05
"""Share of the device that other processes must hold before they are named (contexts and desktops hold less), and that
must lie in pieces before they are."""
UNSEEN = 0.2
"""The same for what only follows from the figures, because the message lists no process."""


ROUNDED = 0.01
"""Of a size: a message shows two decimals, so "2.00 GiB asked, 2.00 GiB free" does not say that enough was free."""


class MemoryCause(StrEnum):
    """Why an allocation of GPU memory failed."""

    LIMIT = "limit"  # the job limits itself to a part of the device
    OTHERS = "others"  # other processes hold what is missing
    FRAGMENTED = "fragmented"  # torch holds enough, in pieces
    DEMAND = "demand"  # the job itself needs more than there is
    TRANSIENT = "transient"  # enough is free: somebody held it for a moment
    UNKNOWN = "untold"  # the message has no figures


class MemoryHolder(MeasuredData, frozen=True, kw_only=True):
    """A process that holds memory of the device; `pid` as the driver counts it, which in a container is the host's."""

    pid: int
    memory_bytes: int


class DeviceMemory(MeasuredData, frozen=True, kw_only=True):
    """The figures of one out-of-memory message, in bytes; None where the message has none."""

    kind: str = "CUDA"
    device: int | None = None  # as the process counts
    inside: bool = True  # of torch's allocator
    by: str = ""  # who asked, where it was not torch: NCCL, cuBLAS
    likely: bool = False  # the message does not say that it was memory: it mostly is
    requested: int | None = None
    capacity: int | None = None
    free: int | None = None
    allocated: int | None = None  # by torch, in tensors
    unallocated: int | None = None  # held by torch and used by no tensor
    limit: int | None = None
    process: int | None = None  # all that this process holds
    others: tuple[MemoryHolder, ...] = ()  # the largest first
    setting: str = ""  # the variable that the message names

    @property
    def others_bytes(self) -> int:
        """Bytes of GPU memory that all processes but the one that ran out of memory hold together."""
        return sum(one.memory_bytes for one in self.others)

    @property
    def cause(self) -> MemoryCause:
        """Why the allocation failed, as far as the figures show it."""
        requested, free = self.requested, self.free
        if requested is None or free is None:
            return MemoryCause.UNKNOWN
        if self.limit is not None and requested + (self.allocated or 0) > self.limit:
            return MemoryCause.LIMIT
        if requested * (1 + ROUNDED) <= free:
            return MemoryCause.TRANSIENT
        if self.capacity and self.others_bytes >= max(requested - free, MUCH * self.capacity):
            return MemoryCause.OTHERS
        if self.unallocated is None:
            return MemoryCause.UNKNOWN
        if self.fragmented:
            return MemoryCause.FRAGMENTED
        much = self.elsewhere >= max(requested - free, UNSEEN * (self.capacity or 0))
        return MemoryCause.OTHERS if much else MemoryCause.DEMAND

    @property
    def elsewhere(self) -> int:
        """Bytes of GPU memory that are used but not held by PyTorch's allocator, where the message lists no processes. 0 where it lists them, or has no figures."""
        if self.others or self.process is not None or self.capacity is None or self.free is None:
            return 0
        own = (self.allocated or 0) + (self.unallocated or 0)
        return max(0, self.capacity - self.free - own)

    @property
    def fragmented(self) -> bool | None:
        """Whether the memory that PyTorch holds unused is large, and together with the free memory would have been enough; None without figures.

        A full device also has some MiB in unused pieces, and joining those would gain nothing.
        """
        requested, free = self.requested, self.free
        if requested is None or free is None or self.unallocated is None:
            return None
        much = self.unallocated >= MUCH * (self.capacity or 0)
        short = free < requested * (1 + ROUNDED)
        return much and short and requested <= free + self.unallocated


def device_memory(text: str) -> DeviceMemory | None:
    """The figures of an out-of-memory message; None for any other text.

    Processes with more memory than the device has are left out.
    """
    text = text[:LONGEST]
    head = _HEAD.search(text)
    if head is None:
        return None
    capacity = _first(_CAPACITY, text)
    allocated, unallocated = _first(_ALLOCATED, text), _first(_CACHED, text)
    reserved = _first(_RESERVED, text)
    if reserved is not None and allocated is not None:
        unallocated = max(0, reserved - allocated)
    own = _first(_OWN, text)
    holders = [one for one in _holders(text) if capacity is None or one.memory_bytes <= capacity]
    if own is None:
        own, holders = _itself(holders, (allocated or 0) + (unallocated or 0))
    device = _DEVICE.search(text)
    setting = _SETTING.search(text)
    return DeviceMemory(
        kind=_kind(head),
        device=int(device[1]) if device else None,
        inside="Tried to allocate" in text,
        by="NCCL" if head["nccl"] else _LIBRARIES.get(head["library"], ""),
        likely=head["library"] is not None,
        requested=_first(_REQUESTED, text),
        capacity=capacity,
        free=_first(_FREE, text),
        allocated=allocated,
        unallocated=unallocated,
        limit=_first(_LIMIT, text),
        process=own,
        others=tuple(sorted(holders, key=lambda one: -one.memory_bytes)),
        setting=setting[0] if setting else "",
    )


def _kind(head: re.Match[str]) -> str:
    if head["library"] or head["nccl"]:
        return "HIP" if "HIP" in head[0].upper() else "CUDA"
    return head["kind"] or "CUDA"


def _first(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    if match is None:
        return None
    number, unit = [group for group in match.groups() if group is not None][:2]
    return _bytes(number, unit)


def _bytes(number: str, unit: str) -> int | None:
    size = round(float(number) * UNITS[unit])
    return size if size < ABSURD else None


def _holders(text: str) -> list[MemoryHolder]:
    listed = ((int(pid), _bytes(number, unit)) for pid, number, unit in _PROCESS.findall(text))
    return [MemoryHolder(pid=pid, memory_bytes=size) for pid, size in listed if size is not None]


def _itself(holders: list[MemoryHolder], held: int) -> tuple[int | None, list[MemoryHolder]]:
    """In a container torch does not know its own pid as the driver counts, and lists itself among the others."""
    fitting = [one for one in holders if held and one.memory_bytes >= held]
    if not fitting:
        return None, holders
    own = min(fitting, key=lambda one: one.memory_bytes)
    return own.memory_bytes, [one for one in holders if one is not own]
