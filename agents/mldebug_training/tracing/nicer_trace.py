"""A replacement for the class `NicerTrace` of the ML engineering handbook, built on this tracer."""

from __future__ import annotations

import os

from mldebug_training.tracing.filters import UNINSTALLED
from mldebug_training.tracing.trace import DEFAULT_SIZE
from mldebug_training.tracing.trace import trace as _trace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Callable


class NicerTrace:
    """A replacement for the class NicerTrace of the ML engineering handbook: the same arguments, but calls go into a ring file
    of fixed size.

    `packages_to_include`: None: everything; "uninstalled": code outside Python itself and site-packages (packages of `pip
    install -e` count); a list: these packages besides that code. `ignoredirs`, `ignoremods`: what is left out; `ignoredirs`
    together with `packages_to_include` is a ValueError. `trace=0`: calls alone. `log_pids`: the rings of forked workers have
    their pid in the name, and each line shown begins with it. The ring is `trace-HOST-LOCALRANK-PID.ring` in the current
    folder, or `ring`.
    """

    def __init__(
        self,
        count: int = 1,
        trace: int = 1,
        countfuncs: int = 0,
        countcallers: int = 0,
        ignoremods: Sequence[str] = (),
        ignoredirs: Sequence[str] | None = (),
        infile: str | None = None,
        outfile: str | None = None,
        timing: bool = False,
        *,
        packages_to_include: Sequence[str] | str | None = None,
        log_pids: bool = False,
        ring: str | None = None,
        size: int = DEFAULT_SIZE,
        start: str = "",
        stop: str = "",
    ) -> None:
        if countfuncs or countcallers or infile:
            raise ValueError("nothing is counted here; use trace.Trace of the standard library")
        if ignoredirs and packages_to_include is not None:
            raise ValueError("can't have both ignoredirs and packages_to_include not None")
        exclude = [*ignoremods, *(os.path.join(ignoredir, "") for ignoredir in ignoredirs or ())]
        place = ring or outfile or _usual_name()
        self.trace = _trace(
            *_packages(packages_to_include), exclude=exclude, start=start, stop=stop,
            lines=bool(trace), ring=place, size=size,
        )  # fmt: skip

        if log_pids:
            self.trace.also("log_pids=1")

    @property
    def path(self) -> str | None:
        """The path of the ring file; None where no traced function was called yet."""
        return self.trace.path

    def run(self, cmd: str) -> None:
        """Run a string in `__main__` with tracing, as exec() does."""
        import __main__

        self.runctx(cmd, vars(__main__), vars(__main__))

    def runctx(self, cmd: str, globals: Any = None, locals: Any = None) -> None:
        """Run Python source in these namespaces while its calls are written to the trace."""
        known = {} if globals is None else globals
        with self.trace:
            exec(cmd, known, {} if locals is None else locals)  # noqa: S102 - it is what was asked for

    def runfunc(self, func: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        """Call a function while its Python calls are written to the trace, and return its result; its exceptions pass."""
        with self.trace:
            return func(*args, **kw)

    def __enter__(self) -> NicerTrace:  # noqa: PYI034
        self.trace.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.trace.end()


def _packages(packages: Sequence[str] | str | None) -> Sequence[str]:
    if packages is None:
        return ("everything",)
    if isinstance(packages, str):
        return (UNINSTALLED,) if packages == UNINSTALLED else (packages, UNINSTALLED)
    return (*packages, UNINSTALLED)


def _usual_name() -> str:
    rank = os.environ.get("LOCAL_RANK", "0")
    return os.path.abspath(f"trace-{os.uname().nodename}-{rank}-{{pid}}.ring")
