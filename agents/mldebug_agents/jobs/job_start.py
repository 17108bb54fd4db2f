"""Starts a job with mldebug's hook in every Python below it.

What the user has set stays, and the job takes this process's place.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from mldebug.core.errors import ToolError, UsageError
from mldebug.core.redact import clean

HOOK = "mldebug_training"
FOLDER = "startup"
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python from its start; the job would inherit it
LOCALE = "LC_CTYPE"  # which Python sets for itself where the locale is C (PEP 538); the job would inherit it


def callers_environment(now: Mapping[str, str]) -> dict[str, str]:
    """The environment with which this process was started: `now` (os.environ), but LC_CTYPE as in /proc/self/environ, because
    Python may have set it since.
    """
    environ = {name: one for name, one in now.items() if name != LOCALE}
    try:
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:  # no /proc
        return dict(now)
    begun = [os.fsdecode(one) for one in given if one.startswith(f"{LOCALE}=".encode())]
    return environ | dict(one.split("=", 1) for one in begun[:1])


def environment(old: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The variables to add so that every Python process below loads the hook: PYTHONPATH with
    `folder` first, then the entries that it had.
    """
    before = old.get("PYTHONPATH", "")  # an empty entry in it is the current folder
    paths = [path for path in before.split(":") if path != str(folder)] if before else []
    return {"PYTHONPATH": ":".join([str(folder), *paths])}


def hook_folder() -> Path:
    """The folder that holds nothing but the hook's `sitecustomize.py`. Raises ToolError where the hook is not installed."""
    spec = find_spec(HOOK)
    places = list(spec.submodule_search_locations or ()) if spec else []
    folder = Path(places[0]) / FOLDER if places else None
    if folder is None or not (folder / "sitecustomize.py").is_file():
        raise ToolError(
            "the hook is not installed", "install the wheel that `make wheel-training` builds"
        )
    return folder


def become(words: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by the job (exec), with the signals at their default that Python ignores.

    Raises UsageError where it cannot be started.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in IGNORED}
    try:
        os.execvpe(words[0], list(words), dict(environ))  # noqa: S606 - an argument list, no shell
    except OSError as error:
        for number, handler in before.items():
            signal.signal(number, handler)
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"{clean(words[0], 100)!r} cannot be started: {reason}", "is it on the PATH?"
        ) from None
