"""Runs our clean-up at the end of processes that multiprocessing starts: they end by os._exit(), so atexit does not run in them.

Workers of a DataLoader or a pool (daemonic, forked or spawned) may be many, and are told apart. multiprocessing is not imported here: in a
job that does not use it nothing is hooked.
"""

from __future__ import annotations

import sys

from mldebug_training.common.interrupted import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable

LAST = -1000  # priority: after what the job itself does at its end
FORKERS = ("multiprocessing.popen_fork", "multiprocessing.forkserver")


def is_worker() -> bool:
    """Whether this process is a daemonic child of multiprocessing, such as a DataLoader worker. Never raises."""
    try:
        process = _process()
        return process is not None and bool(process.current_process().daemon)
    except Exception as error:
        pass_on(error)
        return False


def at_end(call: Callable[[bool], None]) -> None:
    """In a child of multiprocessing: have `call(failed)` called when the child ends by itself, with whether it failed.
    Elsewhere no effect. Never raises.
    """
    try:
        process, util = _process(), sys.modules.get("multiprocessing.util")
        if util is not None and process is not None and process.parent_process() is not None:
            util.Finalize(None, lambda: call(_failed(sys.exc_info()[1])), exitpriority=LAST)
    except Exception as error:
        pass_on(error)


def _process() -> Any:
    return sys.modules.get("multiprocessing.process")


def _failed(error: BaseException | None) -> bool:
    """By the exception that ends its work; from Python 3.13 on, by the exit code that waits in the frame that ends it."""
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    return error is not None or _exit_code() != 0


def _exit_code() -> int:
    """0 where it is not known: what was spawned has forgotten it by then."""
    frame: FrameType | None = sys._getframe()
    while (
        frame is not None and frame.f_code.co_name != "_bootstrap"
    ):  # that one has it as exception
        if frame.f_globals.get("__name__") in FORKERS and isinstance(
            frame.f_locals.get("code"), int
        ):
            return int(frame.f_locals["code"])
        frame = frame.f_back
    return 0
