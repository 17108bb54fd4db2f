"""Begins a trace at the start of a Python process, as `mldebug trace run` and `mldebug run --trace` order it in the environment.

`MLDEBUG_TRACE` is a JSON object with the arguments of `mldebug_training.tracing.trace.trace`: `include` and `exclude` (lists),
`start`, `calls`, `stop`, `lines`, `ring`, `size`. A launcher is not traced, but the processes that it starts are.
`MLDEBUG_TRACE_PID` is the pid of the program that was started: only that process says so where it called no traced function, and so
has no ring.
"""

from __future__ import annotations

import atexit
import json
import os

from mldebug_training.common.interrupted import pass_on
from mldebug_training.hook.ranks import is_launcher
from mldebug_training.tracing.trace import trace, write_stderr


def start(words_of_trace: str) -> None:
    """Begin to trace until the process ends. `words_of_trace`: the JSON of `MLDEBUG_TRACE`. Problems are printed on stderr.
    Never raises.
    """
    try:
        if not is_launcher():
            words = json.loads(words_of_trace)
            tracer = trace(*words.pop("include", ()), **words)
            tracer.begin()
            if os.environ.get("MLDEBUG_TRACE_PID") == str(os.getpid()):
                atexit.register(_report_nothing_called, tracer)
    except Exception as error:
        pass_on(error)
        write_stderr(f"mldebug: tracing is off: {error}\n")


def _report_nothing_called(tracer: trace) -> None:
    """A misspelt name shows itself in no other way."""
    if tracer.path is None and not tracer.why:
        write_stderr(f"mldebug: there is no ring: nothing was called of {tracer.followed}\n")
