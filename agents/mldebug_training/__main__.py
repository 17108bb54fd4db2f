"""The hook without an agent: `python -m mldebug_training` prints the environment variables for a Slurm script or a pod, and `python
-m mldebug_training -- torchrun train.py` sets them and runs that command in its place, as `mldebug run` does.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys

USAGE = "usage: python -m mldebug_training [--] [COMMAND ...]"
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")


def main(words: list[str]) -> int:
    """Print the environment variables, or run the job in this process's place. Returns 2 where it cannot be started."""
    if words[:1] == ["--"]:
        words = words[1:]
        if not words:
            return _refuse("no job was named")
    if not words:
        print(f"export PYTHONPATH={shlex.quote(FOLDER)}${{PYTHONPATH:+:$PYTHONPATH}}")
        return 0
    if words[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    try:
        for number in (
            signal.SIGPIPE,
            signal.SIGXFSZ,
        ):  # Python ignores them, and a job would inherit it
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(words[0], words, _environment())  # noqa: S606 - an argument list, no shell
    except (OSError, ValueError) as error:
        return _refuse(f"{words[0][:100]!r} cannot be started: {error}")
    return 0


def _environment() -> dict[str, str]:
    found = os.environ.get("PYTHONPATH", "")  # an empty entry in it is the current folder
    paths = [path for path in found.split(":") if path != FOLDER] if found else []
    return {**_callers(), "PYTHONPATH": ":".join([FOLDER, *paths])}


def _callers() -> dict[str, str]:
    """Without the LC_CTYPE that Python sets for itself where the locale is C (PEP 538)."""
    found = dict(os.environ)
    try:
        with open("/proc/self/environ", "rb") as file:
            given = [one for one in file.read().split(b"\0") if one.startswith(b"LC_CTYPE=")]
    except OSError:  # no /proc
        return found
    found.pop("LC_CTYPE", None)
    for one in given[:1]:
        found["LC_CTYPE"] = os.fsdecode(one).partition("=")[2]
    return found


def _refuse(why: str) -> int:
    print(f"{why}; {USAGE}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
