"""Both reads as root and as an ordinary user: what root reads and the user does not."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from gpu import world
from gpu.readonce import DENY

WHO = "MLDEBUG_TEST_USER"  # an ordinary user who may run this Python
SKIP = shutil.ignore_patterns("__pycache__", "*.pyc")


def run(folder: Path) -> Iterator[tuple[str, Any]]:
    """One process each, from a copy that everybody may read."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        copy.chmod(0o755)
        for part in ("mldebug", "agents/mldebug_agents", "tests/gpu"):
            shutil.copytree(world.ROOT / part, copy / Path(part).name, ignore=SKIP)
        for one in copy.rglob("*"):
            one.chmod(0o755 if one.is_dir() else 0o644)
        mine = read(copy, None)
        theirs = read(copy, ordinary() if os.geteuid() == 0 else None)
        denied = denying(copy)
    yield "users", [mine["uid"], theirs["uid"]]
    for kind in ("watch", "full"):
        first, second = _names(mine[kind]), _names(theirs[kind])
        yield (
            kind,
            {
                "fields": [len(first), len(second)],
                "only_first": sorted(first - second),
                "only_second": sorted(second - first),
            },
        )
    yield "unreadable", [_unreadable(one["full"]) for one in (mine, theirs)]
    yield "gaps", [[gap["what"] for gap in one["full"].get("gaps", ())] for one in (mine, theirs)]
    yield "events", [one["events"] for one in (mine, theirs)]
    yield "deny_writable_code", denied if isinstance(denied, str) else _missing(mine, denied)


def denying(copy: Path) -> dict[str, Any] | str:
    """The same read where writable code is denied, or why there is none."""
    try:
        return read(copy, None, DENY)
    except AssertionError as error:
        return str(error)


def _missing(mine: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return sorted(
        f"{kind} {name}"
        for kind in ("watch", "full")
        for name in _names(mine[kind]) - _names(other[kind])
    )


def read(copy: Path, uid: int | None, *options: str) -> dict[str, Any]:
    """What `gpu.readonce` prints as that user; raises with what it says."""
    who: dict[str, Any] = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
    env = world.environment(copy)
    rest = [one for one in env["PYTHONPATH"].split(os.pathsep) if one not in world.SOURCES]
    env["PYTHONPATH"] = os.pathsep.join([str(copy), *rest])
    argv = [sys.executable, "-m", "gpu.readonce", *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=copy, env=env, check=False, **who)  # fmt: skip
    assert done.returncode == 0, done.stderr[-1500:]
    found: dict[str, Any] = msgspec.json.decode(done.stdout)
    return found


def ordinary() -> int:
    """The user's number."""
    return pwd.getpwnam(os.environ.get(WHO, "nobody")).pw_uid


def _names(read: dict[str, Any]) -> set[str]:
    """Every value that was read, by its place: `0.clock_hertz.sm`."""
    found: set[str] = set()
    for gpu in read["gpus"]:
        _walk(f"{gpu['index']}", {**gpu, "unreadable": None, "unsupported": None}, found)
    return found


def _walk(place: str, value: Any, found: set[str]) -> None:
    if isinstance(value, dict):
        for name, one in value.items():
            _walk(f"{place}.{name}", one, found)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            _walk(f"{place}.{number}", one, found)
    elif value is not None and value != "":
        found.add(place)


def _unreadable(read: dict[str, Any]) -> dict[str, str]:
    return {
        f"{gpu['index']}.{name}": why
        for gpu in read["gpus"]
        for name, why in gpu.get("unreadable", {}).items()
    }
