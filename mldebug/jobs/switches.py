"""The switches of a job: what lies in their folder, and what to say of it. Pure; the layout stands in
`mldebug_training.helpers.switches.files`. A job may have written anything there, so nothing is taken for true.
"""

import json
import math
from collections.abc import Iterator

import msgspec

from mldebug.core.model import Spoken
from mldebug.core.redact import clean
from mldebug.core.units import format_duration

KILL, SAVE, POLLED = "kill", "save", "polled"
VARIABLE = "MLDEBUG_SWITCH_DIR"
SUFFIX = ".switch"  # of the file beside the record that names the folder
MAX_BYTES = 4096
LATE = 120.0  # seconds without a question after which a person is told
MAX_PATH = 1024


class Switch(Spoken, frozen=True, kw_only=True):
    """One that is set. Unix times."""

    set_at: float
    until: float | None = None
    by: str = ""


class Polled(Spoken, frozen=True, kw_only=True):
    """Who asked for the switches last. Unix times."""

    at: float
    node: str = ""
    pid: int = 0
    rank: int = 0
    world_size: int = 0
    polls: int = 0
    ended: float | None = None


class Folder(Spoken, frozen=True, kw_only=True):
    """What one look into the folder found."""

    folder: str
    kill: Switch | None = None
    save: Switch | None = None
    polled: Polled | None = None
    trouble: str = ""  # why the job does not obey it

    def at(self, name: str) -> Switch | None:
        """The switch of that name."""
        return self.kill if name == KILL else self.save


def switch_text(until: float | None, by: str) -> bytes:
    """What is written into a switch."""
    told = {"by": clean(by)[:40], **({"until": until} if until is not None else {})}
    return json.dumps(told).encode()


def parse_switch(data: bytes, set_at: float) -> Switch:
    """Any file is a switch; what is no JSON of ours in it says nothing."""
    told = _object(data)
    return Switch(set_at=set_at, until=_number(told.get("until")), by=_text(told.get("by"), 40))


def parse_polled(data: bytes) -> Polled | None:
    """None where it is nothing that a job of ours wrote."""
    told = _object(data)
    at = _number(told.get("at"))
    if at is None:
        return None
    names = ("pid", "rank", "world_size", "polls")
    numbers = {name: int(min(max(_number(told.get(name)) or 0, 0), 2**53)) for name in names}
    return Polled(
        at=at, node=_text(told.get("node"), 64), ended=_number(told.get("ended")), **numbers
    )


def parse_announcement(data: bytes) -> str:
    """The folder that a rank has named, an absolute path; "" for none."""
    told = _object(data.rstrip(b"\0")).get("folder")
    usable = isinstance(told, str) and told.startswith("/") and len(told) <= MAX_PATH
    return told if usable and isinstance(told, str) and "\0" not in told else ""


def holds(switch: Switch | None, now: float) -> bool:
    """Is it set, and not over?"""
    return switch is not None and (switch.until is None or switch.until > now)


def state_lines(found: Folder, now: float) -> Iterator[str]:
    """`mldebug switch status`, a line each."""
    yield f"folder  {clean(found.folder)}"
    yield f"kill    {_switch_words(found.kill, now)}"
    yield f"save    {_switch_words(found.save, now)}"
    yield f"asked   {asked_words(found.polled, now)}"
    if found.trouble:
        yield f"trouble: {clean(found.trouble)}"


def asked_words(polled: Polled | None, now: float) -> str:
    """Does anybody obey? In one sentence."""
    if polled is None:
        return "by nobody: no job that makes `mldebug_training.Switches` runs with this folder"
    who = f"by rank {polled.rank} of {polled.world_size} (pid {polled.pid} on {polled.node or '?'})"
    if polled.ended is not None:
        return f"{_ago(polled.ended, now)} for the last time, {who}, which has ended"
    told = f"{_ago(polled.at, now)} {who}"
    if now - polled.at > LATE:
        told += "; a rank that hangs or is gone never asks again: mldebug dump"
    return told


def effect_words(name: str, polled: Polled | None, now: float) -> str:
    """What happens now that a switch is set."""
    if polled is None or polled.ended is not None:
        return "Nobody asks for it now; a job that starts with this folder will."
    todo = "saves and stops" if name == KILL else "saves and goes on"
    return f"Every rank {todo} within its next steps; asked {asked_words(polled, now)}."


def _switch_words(switch: Switch | None, now: float) -> str:
    if switch is None:
        return "not set"
    by = f" by {switch.by}" if switch.by else ""
    told = f"set {_ago(switch.set_at, now)}{by}"
    if switch.until is None:
        return told
    if switch.until <= now:
        return f"{told}, and over since {format_duration(float(int(now - switch.until)))}"
    return f"{told}, for another {format_duration(float(math.ceil(switch.until - now)))}"


def _ago(at: float, now: float) -> str:
    return f"{format_duration(float(max(0, int(now - at))))} ago"


def _object(data: bytes) -> dict[str, object]:
    try:
        told = msgspec.json.decode(data[:MAX_BYTES])
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _number(told: object) -> float | None:
    good = isinstance(told, (int, float)) and not isinstance(told, bool) and math.isfinite(told)
    return float(told) if good and isinstance(told, (int, float)) and abs(told) < 2**53 else None


def _text(told: object, most: int) -> str:
    return clean(told).strip()[:most] if isinstance(told, str) else ""
