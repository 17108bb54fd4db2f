"""The folder of the switches, read and tidied. This docstring is the layout; `mldebug.jobs.switches` reads the same.

    FOLDER/kill     set: stop. `touch` is enough; JSON in it may say {"until": unix time, "by": "who"}
    FOLDER/save     set: save once, and go on; taken away when it was obeyed
    FOLDER/polled   JSON, written by the job: who asks for the switches, and when it did so last

A user who may write the folder may stop the job, so one that everybody may write is not obeyed, nor the default one where it belongs
to another user, or lies where another user may put another folder in its place. Owners are looked at each time. A switch is a regular file:
anything else of that name (a link, a FIFO, a folder) is none. No more than 4 KiB of it is read. Every call may take as
long as a hung mount: only the thread of `SwitchWatch` makes them.
"""

from __future__ import annotations

import errno
import json
import os
import stat

from mldebug_training.common.interrupted import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

KILL, SAVE, POLLED = "kill", "save", "polled"
VARIABLE = "MLDEBUG_SWITCH_DIR"
DEFAULT = ".mldebug-switch"
MAX_BYTES = 4096

_IDS = ("SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
_LOOPBACK = ("", "localhost", "127.0.0.1", "::1")
_GENERIC = ("", "none", "default", "static", "0")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ABSENT = (errno.ENOENT, errno.ENOTDIR)


class SwitchReading:
    """The switches in a folder at one moment. `kill` and `save` are numbers that change each time the switch is set; 0: not
    set. `by`: who set `kill`; `trouble`: why switches are not obeyed, "" where they are.
    """

    def __init__(self, kill: int = 0, save: int = 0, by: str = "", trouble: str = "") -> None:
        self.kill, self.save, self.by, self.trouble = kill, save, by, trouble
        self.owner: int | None = None  # of the folder that was looked at


def choose(folder: str | None, environ: Mapping[str, str]) -> tuple[str, bool]:
    """Return the folder of this job's switches, and whether it is the default one."""
    named = folder or environ.get(VARIABLE, "")
    try:
        if named:
            return os.path.abspath(named), False
        return os.path.join(os.getcwd(), DEFAULT, job_name(environ)), True
    except OSError as error:  # the working directory is gone
        pass_on(error)
        return os.path.join("/", named or DEFAULT), False


def job_name(environ: Mapping[str, str]) -> str:
    """A name that is the same for all ranks of a job, and for all jobs of a job array, so that a switch also stops those still
    queued. At most 64 characters: letters, digits, `-` and `_`.
    """
    ids = (environ.get(name, "") for name in _IDS)
    name = next((one for one in ids if one.lower() not in _GENERIC), "")
    name = name or _meeting(environ)
    safe = "".join(one if one.isascii() and (one.isalnum() or one in "-_") else "_" for one in name)
    return safe[:64]


def _meeting(environ: Mapping[str, str]) -> str:
    """Where the ranks meet: no two jobs can have the same address and port at one time."""
    place = environ.get("MASTER_ADDR", "").lower()
    if place in _LOOPBACK:
        place = os.uname().nodename
    return f"{place[:40]}-{environ.get('MASTER_PORT') or 'none'}"


def make(folder: str) -> str:
    """Create the default folder of switches, readable by this user alone. Returns "", or a sentence on why it cannot be used."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        handle = os.open(folder, _FOLDER)
        try:
            strange = stranger(handle, os.geteuid(), above=True)
        finally:
            os.close(handle)
    except OSError as error:
        return f"{folder} cannot be made: {error.strerror or error}; set {VARIABLE}"
    return f"{folder} {strange}; set {VARIABLE}" if strange else ""


def stranger(handle: int, owner: int, *, above: bool) -> str:
    """Return why the open folder does not belong to the user `owner`, as `belongs to user 7`; "" where it does. With
    `above` the folder above it must belong to that user, too.
    """
    found = os.fstat(handle).st_uid
    if found != owner:
        return f"belongs to user {found}"
    if not above:
        return ""
    found = os.stat("..", dir_fd=handle).st_uid
    return "" if found == owner else f"lies in a folder that belongs to user {found}"


def look(folder: str, now: float, owner: int | None = None, *, ours: bool = False) -> SwitchReading:
    """Which switches are set; `now`: unix time. Never raises. A folder that does not exist has none; switches in one that every user may
    write to are ignored.

    `owner`: the user id that must own it, None: any; `ours`: it is the default folder of mldebug, so the folder above it must
    belong to that user too.
    """
    try:
        handle = os.open(folder, _FOLDER)
    except OSError as error:
        why = error.strerror or str(error)
        return (
            SwitchReading() if error.errno in _ABSENT else SwitchReading(trouble=f"{folder}: {why}")
        )
    try:
        if os.fstat(handle).st_mode & stat.S_IWOTH:
            return SwitchReading(
                trouble=f"{folder} is not obeyed: everybody may write it (chmod o-w)"
            )
        strange = "" if owner is None else stranger(handle, owner, above=ours)
        if strange:
            return SwitchReading(trouble=f"{folder} is not obeyed: it {strange}")
        reading = _look(handle, folder, now)
        reading.owner = os.fstat(handle).st_uid
        return reading
    except OSError as error:
        return SwitchReading(trouble=f"{folder}: {error.strerror or error}")
    finally:
        os.close(handle)


def take(folder: str, name: str, token: int) -> str:
    """Remove a switch that was obeyed, unless it was set again since: then its `token` is another one. Returns why removing
    failed, or "".
    """
    try:
        handle = os.open(folder, _FOLDER)
    except OSError as error:
        return error.strerror or str(error)
    try:
        if _token(os.stat(name, dir_fd=handle, follow_symlinks=False)) == token:
            os.unlink(name, dir_fd=handle)
    except FileNotFoundError:
        pass
    except OSError as error:
        return error.strerror or str(error)
    finally:
        os.close(handle)
    return ""


def write(folder: str, name: str, content: Mapping[str, Any]) -> None:
    """Write a file with this content as JSON, atomically: readers see all of it or the old one. Raises OSError."""
    handle = os.open(folder, _FOLDER)
    fresh = f".{name}-{os.uname().nodename[:64]}-{os.getpid()}"
    try:
        _unlink(fresh, handle)
        file = os.open(fresh, _NEW, 0o644, dir_fd=handle)
        try:
            os.write(file, json.dumps(content).encode())
        finally:
            os.close(file)
        os.rename(fresh, name, src_dir_fd=handle, dst_dir_fd=handle)
    finally:
        os.close(handle)


def clear_up(folder: str) -> None:
    """Remove our own files, and the default folder of switches with the one above it if they are then empty. Never raises."""
    for step in (os.path.join(folder, POLLED), folder, os.path.dirname(folder)):
        try:
            (os.unlink if step.endswith(POLLED) else os.rmdir)(step)
        except OSError:
            pass  # others still use it


def _look(handle: int, folder: str, now: float) -> SwitchReading:
    kill, content, odd = _switch(handle, KILL)
    until = content.get("until")
    if isinstance(until, (int, float)) and until <= now:
        kill = 0
    save, _, odd_too = _switch(handle, SAVE)
    by = "".join(one for one in str(content.get("by", "")) if one.isprintable())[:40]
    trouble = odd or odd_too
    return SwitchReading(kill, save, by, f"{folder}/{trouble}" if trouble else "")


def _switch(handle: int, name: str) -> tuple[int, dict[str, Any], str]:
    """(token, what stands in it, what is odd); who may not read it still sees that it is there."""
    try:
        found = os.stat(name, dir_fd=handle, follow_symlinks=False)
    except FileNotFoundError:
        return 0, {}, ""
    if not stat.S_ISREG(found.st_mode):
        return 0, {}, f"{name} is no regular file, and no switch"
    return _token(found), _content(handle, name), ""


def _content(handle: int, name: str) -> dict[str, Any]:
    try:
        file = os.open(name, _FILE, dir_fd=handle)
        try:
            content = json.loads(os.read(file, MAX_BYTES))
        finally:
            os.close(file)
    except Exception:  # empty, no JSON, nested without end, not for us, gone
        return {}
    return content if isinstance(content, dict) else {}


def _token(found: os.stat_result) -> int:
    """The same on all nodes that see this file, however late; 0 stands for none."""
    return min(max(found.st_mtime_ns, 1), 2**62)


def _unlink(name: str, handle: int) -> None:
    try:
        os.unlink(name, dir_fd=handle)
    except FileNotFoundError:
        pass
