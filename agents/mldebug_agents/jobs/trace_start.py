"""`mldebug trace run`: starts a program whose latest calls are kept in a file of fixed size (a
ring); and what `mldebug run --trace` shares with it.

What to trace is passed to every Python below by one variable, `MLDEBUG_TRACE`, which the hook reads
(`mldebug_training.tracing.start`).
"""

import fcntl
import functools
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from mldebug.capture.trace.open_files import BEFORE
from mldebug.core.errors import UsageError
from mldebug.core.units import parse_size
from mldebug_agents.jobs.job_start import become, callers_environment, environment, hook_folder

VARIABLE = "MLDEBUG_TRACE"
PROGRAM = "MLDEBUG_TRACE_PID"  # it keeps our pid
MAGIC = b"mltrace"  # of a ring of any version
SMALLEST, LARGEST = 256 * 1024, 1 << 36  # bytes
OPTIONS = ("include", "exclude", "start", "stop", "what", "size")

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


class TraceOptions(msgspec.Struct, frozen=True):
    """Which calls of a job are traced, and where to. Without `ring`, the path of the file, each process gets one of its own in
    /dev/shm.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    start: str = ""
    stop: str = ""
    what: str = "calls"
    ring: Path | None = None
    size: str = "64MiB"


def trace_options(prefix: str = "", size: str = "64MiB") -> Decorator:
    """The options that say what of a job is traced, the same for `trace run` and `run --trace`. The decorated command gets them as
    one argument, `traced`. `prefix`: stands before each name, as in `--trace-exclude`; then `--trace` is `--include`. `size`: the
    default size of a ring.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**given: Any) -> None:
            named = {name: given.pop(name) for name in OPTIONS}
            command(traced=TraceOptions(**named), **given)

        wrapped: Callable[..., None] = called
        for option in reversed(_options(prefix, size)):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def _options(prefix: str, size: str) -> tuple[Decorator, ...]:
    names = [f"--{prefix}include"] + ([f"--{prefix.rstrip('-')}"] if prefix else [])
    return (
        click.option(
            *names,
            "include",
            multiple=True,
            metavar="PACKAGE",
            help="Follow this package, module, module:function or folder, or what is `uninstalled`; may be given several times.",
        ),
        click.option(
            f"--{prefix}exclude",
            "exclude",
            multiple=True,
            metavar="PACKAGE",
            help="But not this one.",
        ),
        click.option(
            f"--{prefix}start",
            "start",
            default="",
            metavar="FUNCTION",
            help="Begin when this function is called first: train_step, module:function; or at a step: step:118; or at a signal: signal:USR2.",
        ),
        click.option(
            f"--{prefix}stop",
            "stop",
            default="",
            metavar="FUNCTION",
            help="Write nothing more from then on: a function, a step or a signal.",
        ),
        click.option(
            f"--{prefix}what",
            "what",
            type=click.Choice(["calls", "lines", "both"]),
            default="calls",
            show_default=True,
            help="What is written down.",
        ),
        click.option(
            f"--{prefix}size",
            "size",
            default=size,
            show_default=True,
            help="Size of each process's ring, for ever.",
        ),
    )


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option(
    "--ring",
    type=click.Path(path_type=Path),
    help="The file; a second process adds its pid to the name.",
)
@trace_options()
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND ...")
def run(ring: Path | None, traced: TraceOptions, words: tuple[str, ...]) -> None:
    """Keep what a program did last: mldebug trace run --ring last.ring --include mypkg -- python train.py

    Each Python below has a ring of its own, made when it calls something that is followed: without --include, what is not
    installed. It survives the process, however that ended; without --ring it lies in /dev/shm and goes when the process ends well.
    """
    if not words or not words[0]:
        raise UsageError("no program was named", "mldebug trace run --ring FILE -- python train.py")
    environ = callers_environment(os.environ)
    chosen = variables(msgspec.structs.replace(traced, ring=ring))
    folder = hook_folder()
    make_way(ring)
    become(words, {**environ, **environment(environ, folder), **chosen, PROGRAM: str(os.getpid())})


def variables(wanted: TraceOptions) -> dict[str, str]:
    """The environment variables that the hook reads. Raises UsageError for an option that cannot be used."""
    return {VARIABLE: json.dumps(arguments(wanted))}


def arguments(wanted: TraceOptions) -> dict[str, Any]:
    """The arguments of `mldebug_training.tracing.trace.trace`. Raises UsageError for an option that cannot be used."""
    _check(wanted)
    return {
        "include": wanted.include,
        "exclude": wanted.exclude,
        "start": wanted.start,
        "stop": wanted.stop,
        "calls": wanted.what != "lines",
        "lines": wanted.what != "calls",
        "ring": str(wanted.ring.absolute()) if wanted.ring else None,
        "size": _bytes(wanted.size),
    }


def make_way(ring: Path | None) -> None:
    """Rename an older ring file that has this name. One that a process still writes stays, and the
    new file gets a pid behind its name.

    Raises UsageError where something else lies there, or it cannot be renamed.
    """
    if ring is None or not os.path.lexists(ring):
        return
    try:
        if _may_move(ring):
            ring.rename(f"{ring}{BEFORE}")
    except OSError as error:
        raise UsageError(
            f"{ring}: {(error.strerror or str(error)).lower()}", "name another file"
        ) from None


def _may_move(ring: Path) -> bool:
    """Has nobody its lock? Raises UsageError for what is no ring."""
    descriptor = os.open(ring, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or os.read(descriptor, 7) != MAGIC:
            raise UsageError(f"{ring} is there and is no ring", "name another file")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def _check(wanted: TraceOptions) -> None:
    for word in (*wanted.include, *wanted.exclude):
        if not word or word.strip() != word:
            raise UsageError(
                f"{word!r} names no package, module, function or folder",
                "a package is named as it is imported: --include torch.nn",
            )
    for word in (wanted.start, wanted.stop):
        _check_moment(word)


def _check_moment(word: str) -> None:
    kind, colon, value = word.partition(":")
    no_step = kind == "step" and colon and not (value.isascii() and value.isdigit())
    no_signal = kind == "signal" and colon and value not in ("USR1", "USR2")
    if no_step or no_signal or word.strip() != word:
        raise UsageError(
            f"{word!r} is no function, step or signal", "write train_step, step:118 or signal:USR2"
        )


def _bytes(size: str) -> int:
    try:
        number = parse_size(size)
    except ValueError as error:
        raise UsageError(str(error), "write --size 64MiB") from None
    if not SMALLEST <= number <= LARGEST:
        raise UsageError("a ring has between 256KiB and 64GiB", "write --size 64MiB")
    return number
