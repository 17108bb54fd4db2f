"""`mldebug trace run`: starts a program whose calls are kept in a ring, and what `mldebug run --trace` shares with it.

What is wanted travels to every Python below by one variable, `MLDEBUG_TRACE`, which the hook reads (`mldebug_training.tracestart`).
"""

import json
import os
from pathlib import Path

import click
import msgspec

from mldebug.errors import UsageError
from mldebug.settings.units import parse_size
from mldebug_agents.jobstart import become, callers_environment, environment, hook_folder

VARIABLE = "MLDEBUG_TRACE"
MAGIC = b"mltrace"  # of a ring of any version
SMALLEST, LARGEST = 256 * 1024, 1 << 36  # bytes


class Wanted(msgspec.Struct, frozen=True):
    """What is to be traced; no ring: one for each process in /dev/shm."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    start: str = ""
    what: str = "calls"
    ring: Path | None = None
    size: str = "64MiB"


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option(
    "--ring",
    type=click.Path(path_type=Path),
    help="The file; a second process adds its pid to the name.",
)
@click.option("--size", default="64MiB", show_default=True, help="Size of each ring, for ever.")
@click.option(
    "--include",
    multiple=True,
    metavar="PACKAGE",
    help="Follow this package, module, module:function or folder; without one: what is not installed.",
)
@click.option("--exclude", multiple=True, metavar="PACKAGE", help="But not this one.")
@click.option(
    "--start",
    default="",
    metavar="FUNCTION",
    help="Begin when this function is called first: train_step, module:function; or at a step: step:118.",
)
@click.option(
    "--what",
    type=click.Choice(["calls", "lines", "both"]),
    default="calls",
    show_default=True,
    help="What is written down.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND ...")
def run(
    ring: Path | None,
    size: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    start: str,
    what: str,
    words: tuple[str, ...],
) -> None:  # fmt: skip
    """Keep what a program did last: mldebug trace run --ring last.ring --include mypkg -- python train.py

    Each Python below has a ring of its own, made when it calls something that is followed. It survives the process, however
    that ended; without --ring it lies in /dev/shm and goes when the process ends well.
    """
    if not words or not words[0]:
        raise UsageError("no program was named", "mldebug trace run --ring FILE -- python train.py")
    told = callers_environment(os.environ)
    traced = variables(Wanted(include, exclude, start, what, ring, size))
    folder = hook_folder()
    make_way(ring)
    become(words, {**told, **environment(told, folder), **traced})


def variables(wanted: Wanted) -> dict[str, str]:
    """What the hook reads. Raises UsageError for what cannot be meant."""
    _check(wanted)
    told = {
        "include": wanted.include,
        "exclude": wanted.exclude,
        "start": wanted.start,
        "calls": wanted.what != "lines",
        "lines": wanted.what != "calls",
        "ring": str(wanted.ring.absolute()) if wanted.ring else None,
        "size": _bytes(wanted.size),
    }
    return {VARIABLE: json.dumps(told)}


def make_way(ring: Path | None) -> None:
    """Take an older ring of this name away. Raises UsageError where something else lies there."""
    if ring is None or not os.path.lexists(ring):
        return
    try:
        with ring.open("rb") as file:
            is_ring = file.read(len(MAGIC)) == MAGIC
        if is_ring:
            ring.unlink()
    except OSError as error:
        raise UsageError(
            f"{ring}: {(error.strerror or str(error)).lower()}", "name another file"
        ) from None
    if not is_ring:
        raise UsageError(f"{ring} is there and is no ring", "name another file")


def _check(wanted: Wanted) -> None:
    for word in (*wanted.include, *wanted.exclude):
        if not word or word.strip() != word:
            raise UsageError(
                f"{word!r} names no package, module, function or folder",
                "a package is named as it is imported: --include torch.nn",
            )


def _bytes(size: str) -> int:
    try:
        number = parse_size(size)
    except ValueError as error:
        raise UsageError(str(error), "write --size 64MiB") from None
    if not SMALLEST <= number <= LARGEST:
        raise UsageError("a ring has between 256KiB and 64GiB", "write --size 64MiB")
    return number
