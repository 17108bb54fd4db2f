"""Begins a trace at the start of an interpreter, as `mldebug trace run` and `mldebug run --trace` have told it in the environment.

`MLDEBUG_TRACE` is a JSON object with the arguments of `mldebug_training.trace.trace`: `include` and `exclude` (lists), `start`, `calls`,
`lines`, `ring`, `size`. A launcher is not traced; what it starts is.
"""

from __future__ import annotations

import json

from mldebug_training.interrupted import pass_on
from mldebug_training.ranks import is_launcher
from mldebug_training.trace import say, trace


def start(told: str) -> None:
    """Begin, and go on until the process ends; what is wrong is said on stderr. Never raises."""
    try:
        if not is_launcher():
            words = json.loads(told)
            trace(*words.pop("include", ()), **words).begin()
    except Exception as error:
        pass_on(error)
        say(f"mldebug: tracing is off: {error}\n")
