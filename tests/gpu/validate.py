"""Tries on real GPUs what is claimed of them, and writes what came of it.

    python tests/gpu/validate.py FOLDER [PART ...]     without parts: all that nobody need be asked for, as many as nine minutes hold

FOLDER gets `validation.json`, `validation.md` and `validation.log`. Each part is a process of its own with a time limit, and
what it has found so far is kept when it fails or hangs. Needs two NVIDIA GPUs and PyTorch; nothing of ours is installed.
Another call adds to what is in FOLDER: a part that is named there again is replaced.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
SOURCES = [str(ROOT / part) for part in (".", "agents", "exporters", "tests")]
LIMITS = {
    "xid": 30.0,
    "release": 60.0,
    "user": 60.0,
    "metrics": 75.0,
    "fingerprint": 119.0,
    "phases": 230.0,
    "desync": 85.0,
    "agent": 115.0,
    "effect": 119.0,
    "reads": 115.0,
    "flight": 230.0,
    "tests": 300.0,
    "xid13": 90.0,
    "hangs": 525.0,
    "exits": 529.0,
    "hooked": 525.0,
    "healthy": 530.0,
    "stepless": 530.0,
    "ways": 500.0,
    "full": 530.0,
    "whose": 530.0,
    "frameworks": 528.0,
    "slow": 540.0,
    "memory": 270.0,
    "profile": 300.0,
}  # seconds of each part; those whose loss would hurt most come first
ON_REQUEST = (
    "xid13",
    "hangs",
    "exits",
    "hooked",
    "healthy",
    "stepless",
    "ways",
    "full",
    "whose",
    "frameworks",
    "slow",
    "memory",
    "profile",
)  # only where named: whoever lends the GPUs shall decide; calls of their own
ALL = 540.0  # seconds of one call
LEAST = 0.5  # of its limit: a part that gets less is left out
ONE = "--one"
GRACE = 20.0  # seconds to end what a part has started


def main(argv: list[str]) -> int:
    """Run the parts; returns how many did not end well."""
    if argv[:1] == [ONE]:
        return alone(argv[1], Path(argv[2]), Path(argv[3]))
    folder, names = Path(argv[0]), argv[1:] or standard()
    unknown = [name for name in names if name not in LIMITS]
    if unknown:
        sys.exit(f"no part {', '.join(unknown)}: there are {', '.join(LIMITS)}")
    return together(folder, names)


def standard() -> list[str]:
    """The parts of a call that names none."""
    return [name for name in LIMITS if name not in ON_REQUEST]


# --- all parts -----------------------------------------------------------------------------------


def together(folder: Path, names: list[str]) -> int:
    """One after the other; after each one everything is written."""
    end = time.monotonic() + ALL
    folder.mkdir(parents=True, exist_ok=True)
    found = earlier(folder) | {"machine": import_module("gpu.machine").machine()}
    for name in names:
        limit = min(LIMITS[name], end - time.monotonic())
        if limit < LEAST * LIMITS[name]:
            part: dict[str, Any] = {"status": "left out", "error": "no time was left"}
        else:
            part = run(name, folder, limit)
        found.setdefault("parts", {})[name] = part
        print(f"{name:12} {part['status']:9} {part.get('seconds', 0):6.1f} s  {part.get('error', '')[-200:]}", flush=True)  # fmt: skip
        write(folder, found)
    return sum(found["parts"][name]["status"] != "done" for name in names)


def earlier(folder: Path) -> dict[str, Any]:
    """What an earlier call has found."""
    file = folder / "validation.json"
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def write(folder: Path, found: dict[str, Any]) -> None:
    """The page is made by the same code as the project's own; where that fails, the figures are there."""
    (folder / "validation.json").write_text(json.dumps(found, indent=1, default=str) + "\n")
    try:
        text = import_module("gpu.page").page(found)
    except Exception:  # noqa: BLE001 - a page that cannot be made costs no figures
        text = traceback.format_exc()
    (folder / "validation.md").write_text(text)


def run(name: str, folder: Path, limit: float) -> dict[str, Any]:
    """One part in a process of its own, with all that it starts."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mldebug-", ignore_cleanup_errors=True) as scratch:
        out = Path(scratch) / "found.jsonl"
        argv = [sys.executable, str(Path(__file__).resolve()), ONE, name, str(out), scratch]
        with (folder / "validation.log").open("ab") as log:
            log.write(f"--- {name}\n".encode())
            process = subprocess.Popen(
                argv, stdout=log, stderr=log, env=environment(), start_new_session=True
            )
            status, error = wait(process, limit)
        data, result = gathered(out)
    seconds = round(time.monotonic() - began, 1)
    return {"status": status, "error": result or error, "seconds": seconds, "data": data}


def wait(process: "subprocess.Popen[bytes]", limit: float) -> tuple[str, str]:
    """Interrupt it when its time is over, so that it ends what it has started; then end it."""
    try:
        code = process.wait(limit)
        return ("done", "") if code == 0 else ("failed", f"it ended with {code}")
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        kill(process.pid)
        process.wait(20)
    return "timed out", f"it took longer than {limit:.0f} s"


def kill(pid: int) -> None:
    """End a process and all below it; torchrun's ranks have sessions of their own."""
    for one in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def gathered(out: Path) -> tuple[dict[str, Any], str]:
    """What a part has told until it ended, and why it failed."""
    data: dict[str, Any] = {}
    for line in out.read_text().splitlines() if out.exists() else ():
        name, value = json.loads(line)
        data[name] = value
    return data, str(data.pop("error", ""))


def environment() -> dict[str, str]:
    """The sources in front, and a language in which all programs print alike."""
    rest = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    kept = [one for one in rest if one not in SOURCES]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*SOURCES, *kept]), "LC_ALL": "C.UTF-8"}


# --- one part ------------------------------------------------------------------------------------


def alone(name: str, out: Path, scratch: Path) -> int:
    """Run one part; every finding is a line at once."""
    with out.open("a") as file:
        try:
            for key, value in import_module(f"gpu.parts.{name}").run(scratch):
                file.write(json.dumps([key, value], default=str) + "\n")
                file.flush()
        except BaseException as error:  # noqa: BLE001 - an interrupt is the end of its time, and told as any failure
            traceback.print_exc()
            file.write(json.dumps(["error", f"{type(error).__name__}: {error}"[:2000]]) + "\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.path[:0] = [one for one in SOURCES if one not in sys.path]
    sys.exit(main(sys.argv[1:]))
