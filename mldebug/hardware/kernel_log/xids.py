"""What an Xid means: the catalogue that ships beside this file as `xids.yaml`, and what to do about one event."""

from collections.abc import Iterable
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from mldebug.core.errors import EvidenceError
from mldebug.hardware.gpu.readings import GpuEvent
from mldebug.hardware.kernel_log.lines.reader import bus_id
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind, Origin
from mldebug.hardware.kernel_log.nvlink5 import (
    NvlinkLine,
    NvlinkRule,
    asked_for,
    is_nvlink5,
    rule_for,
)

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
NOTHING_ASKED = "none"
"""What an Xid 154 says, in lower case, where the driver asks for nothing (any more)."""

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


_DRASTIC: tuple[Action, ...] = (
    "none",
    "unknown",
    "follow_driver",
    "collect_report",
    "restart_job",
    "check_job",
    "update_driver",
    "check_hardware",
    "reset_gpu",
    "reboot_node",
)


def most_drastic(actions: Iterable[Action]) -> Action:
    """The most drastic of several actions; "none" where there are none."""
    return max(actions, key=_DRASTIC.index, default="none")


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


class SxidLists(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Errors of NVSwitches (SXids) that are worse than their line says."""

    nonfatal_with_impact: frozenset[int] = frozenset()  # they stop the traffic of a GPU
    always_fatal: frozenset[int] = frozenset()  # only a restart of the host cures them


class Catalogue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All rows of one version of the Xid catalogue."""

    version: str
    sources: tuple[str, ...] = ()  # where it comes from, and of which day
    xids: tuple[Xid, ...]
    nvlink5: tuple[NvlinkRule, ...] = ()
    sxids: SxidLists = SxidLists()

    def by_number(self) -> dict[int, Xid]:
        """The rows of the catalogue, by Xid number."""
        return {row.xid: row for row in self.xids}


def parse_catalogue(text: str | bytes) -> Catalogue:
    """Read a catalogue from YAML.

    Raises EvidenceError for an unknown key, an invalid value, or a number that occurs twice.
    """
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
    """NVIDIA's catalogue of Xids, the error numbers of its driver: for each what it means and what to do, from the table that ships with mldebug."""
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


class XidJudgement(NamedTuple):
    """How bad one GPU event is, and what it asks for."""

    tier: Tier
    action: Action


_NOTHING = XidJudgement(Tier.INFORMATION, "none")
_OF_DRIVER: dict[str, XidJudgement] = {
    NOTHING_ASKED: _NOTHING,
    "gpu reset required": XidJudgement(Tier.FATAL, "reset_gpu"),
    "drain and reset": XidJudgement(Tier.FATAL, "reset_gpu"),
    "pf flr": XidJudgement(Tier.FATAL, "reset_gpu"),
    "bus reset": XidJudgement(Tier.FATAL, "reset_gpu"),
    "node reboot required": XidJudgement(Tier.FATAL, "reboot_node"),
    "system reboot": XidJudgement(Tier.FATAL, "reboot_node"),
    "drain p2p": XidJudgement(Tier.WARNING, "reset_gpu"),
}
"""What an Xid 154 asks for, by its words in lower case. PF FLR: a function level reset, which nvidia-smi calls "Reset"."""

_OF_NVLINK: dict[str, XidJudgement] = {
    "nothing": _NOTHING,
    "restart": XidJudgement(Tier.APPLICATION, "restart_job"),
    "look": XidJudgement(Tier.WARNING, "check_hardware"),
    "reset": XidJudgement(Tier.FATAL, "reset_gpu"),
}


def judge(event: KernelEvent) -> XidJudgement:
    """How bad one GPU event is, and what to do about it: from its own line where that says so, else from the Xid catalogue."""
    if event.kind is KernelEventKind.SXID:
        return _of_switch(event)
    if event.xid is None:
        return _NOTHING
    if event.recovery:
        return _of_driver(event.recovery)
    if event.cause is not None:
        row = xid_row(event.cause)
        return XidJudgement(row.tier, row.action)
    if is_nvlink5(event.xid) and event.unit:
        return _of_link(event, event.xid)
    row = xid_row(event.xid)
    return XidJudgement(Tier.FATAL if event.severity == "fatal" else row.tier, row.action)


def _of_driver(words: str) -> XidJudgement:
    """Words that are not known yet are read by what they contain: never as nothing."""
    known = _OF_DRIVER.get(words.lower())
    if known is not None:
        return known
    if "reboot" in words.lower():
        return XidJudgement(Tier.FATAL, "reboot_node")
    if "reset" in words.lower():
        return XidJudgement(Tier.FATAL, "reset_gpu")
    return XidJudgement(Tier.WARNING, "follow_driver")


def _of_link(event: KernelEvent, xid: int) -> XidJudgement:
    fatal = {"fatal": True, "nonfatal": False}.get(event.severity)
    line = NvlinkLine(xid=xid, unit=event.unit, info=event.info, status=event.status, fatal=fatal)
    return _OF_NVLINK[asked_for(rule_for(catalogue().nvlink5, line), line)]


def _of_switch(event: KernelEvent) -> XidJudgement:
    lists = catalogue().sxids
    if event.xid in lists.always_fatal:
        return XidJudgement(Tier.FATAL, "reboot_node")
    if event.severity == "fatal":
        return XidJudgement(Tier.FATAL, "reset_gpu")
    if event.xid in lists.nonfatal_with_impact:
        return XidJudgement(Tier.WARNING, "reset_gpu")
    return _NOTHING


def xid_of_nvml(event: GpuEvent) -> KernelEvent | None:
    """An Xid that NVML reported, as a kernel event; None for other events.

    Its time is that of the reading, since NVML gives none.
    """
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
