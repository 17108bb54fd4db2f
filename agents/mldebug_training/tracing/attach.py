"""Begins and ends a trace in a process that runs already, for `mldebug trace attach` and `mldebug trace detach`.

Python 3.14 and later can be asked from outside to run a file at the next safe point of the main thread (PEP 768); that file
calls these functions. They never raise: what stands in the way is in the answer, which is written as JSON.
"""

from __future__ import annotations

from mldebug_training.common.interrupted import pass_on
from mldebug_training.common.signals import closed
from mldebug_training.tracing.trace import running, trace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def attach(words: dict[str, Any]) -> dict[str, Any]:
    """Trace all threads from now on. `words`: the arguments of `trace`, as `MLDEBUG_TRACE` has them (see `tracing.start`).

    The answer has `engine` and `followed` in words, or `why` there is no trace. A process has one trace at a time.
    """
    try:
        if running():
            return {"why": "it is traced already"}
        words = dict(words)
        tracer = trace(*words.pop("include", ()), **words)
        closed(tracer.begin)
        if tracer.why:
            return {"why": tracer.why}
        return {"engine": tracer.engine, "followed": tracer.followed}
    except Exception as error:
        pass_on(error)
        return {"why": f"{type(error).__name__}: {error}"}


def detach() -> dict[str, Any]:
    """End the trace of this process; its ring stays. The answer has the path in `ring` ("": nothing was called that is followed),
    or `why` no trace was ended.
    """
    try:
        found = running()
        if found is None:
            return {"why": "it is not traced"}
        closed(found.end)
        return {"ring": found.path or ""}
    except Exception as error:
        pass_on(error)
        return {"why": f"{type(error).__name__}: {error}"}
