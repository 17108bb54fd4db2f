"""What an Xid means: the catalogue that ships beside this file as `xids.yaml`, and what to do about one event."""

from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from mldebug.core.errors import EvidenceError
from mldebug.hardware.gpu.readings import GpuEvent
from mldebug.hardware.kernel_log.lines.reader import bus_id
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind, Origin

FILE = Path(__file__).with_name("xids.yaml")


class Tier(StrEnum):
    """How bad an Xid is, and whether it concerns the application, the GPU or the node."""

    FATAL = "fatal"  # the GPU or its node is to blame: take it out
    WARNING = "warning"  # the next maintenance window
    APPLICATION = "application"  # the job is to blame first
    INFORMATION = "information"
    UNKNOWN = "unknown"  # not in the catalogue


ORDER = (Tier.INFORMATION, Tier.UNKNOWN, Tier.APPLICATION, Tier.WARNING, Tier.FATAL)
"""From harmless to bad."""

Class = Literal["application", "hardware", "memory", "link", "firmware", "information", "unknown"]
Action = Literal[
    "none",
    "restart_job",
    "check_job",
    "reset_gpu",
    "reboot_node",
    "check_hardware",
    "update_driver",
    "collect_report",
    "follow_driver",
    "unknown",
]
ACTION_WORDS: dict[str, str] = {
    "none": "nothing to do",
    "restart_job": "restart the job",
    "check_job": "look for a bug in the job first",
    "reset_gpu": "drain the node and reset this GPU",
    "reboot_node": "drain and reboot the node",
    "check_hardware": "check this GPU's hardware: diagnostics, seating, cables",
    "update_driver": "look at the driver's version and settings",
    "collect_report": "keep an nvidia-bug-report and watch whether it repeats",
    "follow_driver": "do what the driver asks for",
    "unknown": "look the number up in NVIDIA's Xid catalogue",
}


class Xid(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One row of the Xid catalogue."""

    xid: int
    name: str  # short and stable, for machines
    class_: Class = msgspec.field(name="class")
    tier: Tier
    action: Action
    meaning: str  # follows "Xid 79 (", no full stop
    advice: str = ""
    follows: bool = False  # a consequence: another Xid of the same burst is the first


class Catalogue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All rows of one version of the Xid catalogue."""

    version: str
    xids: tuple[Xid, ...]

    def by_number(self) -> dict[int, Xid]:
        """The rows by their number."""
        return {row.xid: row for row in self.xids}


def parse_catalogue(text: str | bytes) -> Catalogue:
    """Read a catalogue, strictly: an unknown key, a wrong word or a number that stands twice is an EvidenceError."""
    try:
        found = msgspec.yaml.decode(text, type=Catalogue, strict=True)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise EvidenceError(
            f"the Xid catalogue cannot be read: {error}", f"compare it with {FILE.name}"
        ) from None
    numbers = [row.xid for row in found.xids]
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        raise EvidenceError(f"the Xid catalogue has {twice[0]} twice", "keep one of the rows")
    return found


@cache
def catalogue() -> Catalogue:
    """The catalogue that ships with mldebug."""
    return parse_catalogue(FILE.read_bytes())


@cache
def _rows() -> dict[int, Xid]:
    return catalogue().by_number()


def xid_row(number: int) -> Xid:
    """The row of an Xid; one of tier `unknown` for a number that the catalogue does not have."""
    row = _rows().get(number)
    return row if row is not None else _unknown(number)


def _unknown(number: int) -> Xid:
    return Xid(
        xid=number,
        name="unknown",
        class_="unknown",
        tier=Tier.UNKNOWN,
        action="unknown",
        meaning="not in the catalogue",
    )


def tier_of(event: KernelEvent) -> Tier:
    """How bad one GPU event is: by its own line where that says so, else by the catalogue."""
    if event.kind is KernelEventKind.SXID:
        return Tier.FATAL if event.severity == "fatal" else Tier.WARNING
    if event.xid is None:
        return Tier.INFORMATION
    if event.recovery:
        return Tier.INFORMATION if event.recovery.lower() == "none" else Tier.WARNING
    row = xid_row(event.xid)
    return Tier.FATAL if event.severity == "fatal" else row.tier


def xid_of_nvml(event: GpuEvent) -> KernelEvent | None:
    """An Xid from NVML as a kernel event; None for another event. Its time is that of the read that found it: NVML gives no other."""
    if event.kind != "xid" or event.xid is None:
        return None
    return KernelEvent(
        kind=KernelEventKind.XID,
        at=event.at,
        origin=Origin.NVML,
        device=bus_id(event.bus_id),
        uuid=event.uuid,
        xid=event.xid,
    )
