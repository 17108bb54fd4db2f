"""NVLink 5 errors (Xids 144 to 150): which rule of NVIDIA's catalogue fits a line, and what that asks for.

Pure.

The Xid number alone says little: some of these errors stop the GPU, many are corrected by the
hardware. The line names the unit and gives two numbers, `info` and `status`, by which the
catalogue's table is read.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

FIRST, LAST = 144, 150  # the Xids that are read by this table
REASON_SHIFT, REASON_MASK = 20, 0x3F  # where `info` has the reason for a link that went down
# A promotable error is fatal where this bit of `info` is set: (mask, unit's code, bit), before R575 and from R575 on
_PROMOTED = ((0x3FF, 0x0C2, 1 << 10), (0x7F, 0x06, 1 << 7))

Advice = Literal["ignore", "driver", "reset"]
Severity = Literal["nonfatal", "fatal", "usually_fatal", "promotable"]
_ORDER: tuple[Advice, ...] = ("ignore", "driver", "reset")


class NvlinkRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows of the catalogue's table that ask for the same. Without `statuses` and `reasons` it holds for every line of its units."""

    xid: int
    units: tuple[str, ...]
    advice: Advice
    severity: Severity
    statuses: tuple[int, ...] = ()
    reasons: tuple[int, ...] = ()  # why a link went down


class NvlinkLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one NVLink 5 line of the kernel log says. `fatal`: whether the line calls the error fatal; None where it does not say."""

    xid: int
    unit: str
    info: int | None = None
    status: int | None = None
    fatal: bool | None = None


def is_nvlink5(xid: int | None) -> bool:
    """Whether this Xid number is one of the NVLink 5 errors."""
    return xid is not None and FIRST <= xid <= LAST


def rule_for(rules: Iterable[NvlinkRule], line: NvlinkLine) -> NvlinkRule | None:
    """The rule that fits a line; None where the table has none.

    If a status has several bits, the rule that asks for the most drastic action.
    """
    mine = [rule for rule in rules if rule.xid == line.xid and line.unit in rule.units]
    for rule in mine:
        if line.status in rule.statuses or _reason(line) in rule.reasons:
            return rule
        if not rule.statuses and not rule.reasons:
            return rule
    return _of_several_bits(mine, line.status or 0)


def _reason(line: NvlinkLine) -> int | None:
    return None if line.info is None else line.info >> REASON_SHIFT & REASON_MASK


def _of_several_bits(rules: Sequence[NvlinkRule], status: int) -> NvlinkRule | None:
    fitting = [rule for rule in rules if any(bit & status == bit != 0 for bit in rule.statuses)]
    return max(fitting, key=lambda rule: _ORDER.index(rule.advice), default=None)


def asked_for(rule: NvlinkRule | None, line: NvlinkLine) -> Literal["nothing", "restart", "look", "reset"]:  # fmt: skip
    """What to do: `nothing`, `restart` the job, `look` at the link, or `reset` the GPU.

    `rule`: the catalogue's; None: it has none.

    Where catalogue and line disagree about severity, the line decides, as it says how this error
    was handled.
    """
    if rule is None:
        return "reset" if line.fatal else "look"
    if rule.advice == "reset":
        return "look" if line.fatal is False else "reset"
    if rule.severity == "promotable" and _promoted(line.info or 0):
        return "reset"
    if rule.severity == "fatal":
        return "look"  # a link that somebody switched off
    if line.fatal:
        return "reset"
    return "restart" if rule.advice == "driver" else "nothing"


def _promoted(info: int) -> bool:
    return any(info & mask == code and info & bit != 0 for mask, code, bit in _PROMOTED)
