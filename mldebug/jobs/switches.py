"""The switches of a job (`kill`, `save`: files by which a person asks all ranks to stop or to save): parses these files and
describes them. Pure.

`mldebug_training.helpers.switches.files` defines their layout. A job may have written anything there, so everything is checked.
"""

import json
import math
from collections.abc import Iterator

import msgspec

from mldebug.core.model import ReportData
from mldebug.core.redact import clean
from mldebug.core.units import duration_words

KILL, SAVE, POLLED = "kill", "save", "polled"
VARIABLE = "MLDEBUG_SWITCH_DIR"
SUFFIX = ".switch"  # of the file beside the record that names the folder
MAX_BYTES = 4096
LATE = 120.0  # seconds without a question after which a person is told
MAX_PATH = 1024


class Switch(ReportData, frozen=True, kw_only=True):
    """A switch file that exists. `until`: when it expires, None for never. Times are unix seconds."""

    set_at: float
    until: float | None = None
    by: str = ""


class LastPoll(ReportData, frozen=True, kw_only=True):
    """When a rank of the job last looked at its switches. Times are unix seconds."""

    at: float
    node: str = ""
    pid: int = 0
    rank: int = 0
    world_size: int = 0
    polls: int = 0
    ended: float | None = None


class SwitchState(ReportData, frozen=True, kw_only=True):
    """The switches that are set in a folder, and when the job last looked at them."""

    folder: str
    kill: Switch | None = None
    save: Switch | None = None
    polled: LastPoll | None = None
    trouble: str = ""  # why the job does not obey it

    def at(self, name: str) -> Switch | None:
        """The switch with this name (`kill` or `save`); None where it is not set."""
        return self.kill if name == KILL else self.save


def switch_text(until: float | None, by: str) -> bytes:
    """The JSON content of a switch file. `until`: unix time at which it expires, None for never; `by`: the person who sets it."""
    content = {"by": clean(by)[:40], **({"until": until} if until is not None else {})}
    return json.dumps(content).encode()


def parse_switch(data: bytes, set_at: float) -> Switch:
    """The switch in a file that was set at `set_at` (unix time). Any content counts as a set switch; only our own JSON adds an
    expiry and a person.
    """
    content = _object(data)
    return Switch(
        set_at=set_at, until=_number(content.get("until")), by=_text(content.get("by"), 40)
    )


def parse_polled(data: bytes) -> LastPoll | None:
    """When a job last looked at its switches, from the content of the file `polled`; None where it is not in our format."""
    content = _object(data)
    at = _number(content.get("at"))
    if at is None:
        return None
    names = ("pid", "rank", "world_size", "polls")
    numbers = {name: int(min(max(_number(content.get(name)) or 0, 0), 2**53)) for name in names}
    return LastPoll(
        at=at, node=_text(content.get("node"), 64), ended=_number(content.get("ended")), **numbers
    )


def parse_announcement(data: bytes) -> str:
    """The switch folder that a rank announced in its file, an absolute path; "" where there is no usable one."""
    folder = _object(data.rstrip(b"\0")).get("folder")
    usable = isinstance(folder, str) and folder.startswith("/") and len(folder) <= MAX_PATH
    return folder if usable and isinstance(folder, str) and "\0" not in folder else ""


def holds(switch: Switch | None, now: float) -> bool:
    """Whether the switch is set and has not expired. `now`: unix time."""
    return switch is not None and (switch.until is None or switch.until > now)


def state_lines(found: SwitchState, now: float) -> Iterator[str]:
    """Yield the output of `mldebug switch status`, line by line. `now`: unix time."""
    yield f"folder  {clean(found.folder)}"
    yield f"kill    {_switch_words(found.kill, now)}"
    yield f"save    {_switch_words(found.save, now)}"
    yield f"asked   {poll_words(found.polled, now)}"
    if found.trouble:
        yield f"trouble: {clean(found.trouble)}"


def poll_words(polled: LastPoll | None, now: float) -> str:
    """When, and by which rank, the switches were looked at last, in one sentence. `now`: unix time."""
    if polled is None:
        return "by nobody: no job that makes `mldebug_training.Switches` runs with this folder"
    who = f"by rank {polled.rank} of {polled.world_size} (pid {polled.pid} on {polled.node or '?'})"
    if polled.ended is not None:
        return f"{_ago(polled.ended, now)} for the last time, {who}, which has ended"
    text = f"{_ago(polled.at, now)} {who}"
    if now - polled.at > LATE:
        text += "; a rank that hangs or is gone never asks again: mldebug dump"
    return text


def effect_words(name: str, polled: LastPoll | None, now: float) -> str:
    """What the job does now that the switch `name` is set, in words. `now`: unix time."""
    if polled is None or polled.ended is not None:
        return "Nobody asks for it now; a job that starts with this folder will."
    todo = "saves and stops" if name == KILL else "saves and goes on"
    return f"Every rank {todo} within its next steps; asked {poll_words(polled, now)}."


def _switch_words(switch: Switch | None, now: float) -> str:
    if switch is None:
        return "not set"
    by = f" by {switch.by}" if switch.by else ""
    text = f"set {_ago(switch.set_at, now)}{by}"
    if switch.until is None:
        return text
    if switch.until <= now:
        return f"{text}, and over since {duration_words(int(now - switch.until))}"
    return f"{text}, for another {duration_words(math.ceil(switch.until - now))}"


def _ago(at: float, now: float) -> str:
    return f"{duration_words(int(now - at))} ago"


def _object(data: bytes) -> dict[str, object]:
    try:
        value = msgspec.json.decode(data[:MAX_BYTES])
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good and isinstance(value, (int, float)) and abs(value) < 2**53 else None


def _text(value: object, most: int) -> str:
    return clean(value).strip()[:most] if isinstance(value, str) else ""
