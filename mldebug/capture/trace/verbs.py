"""`mldebug trace show`, `export` and `merge`: what the rings of traced processes say. They read files, and nothing else."""

import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path

import click
import msgspec

from mldebug.capture.trace.call_tree import tree_lines
from mldebug.capture.trace.export import chrome, process_name, speedscope
from mldebug.capture.trace.line_format import lines, no_source
from mldebug.capture.trace.merge import merge as merge_rings
from mldebug.capture.trace.merge import numbered
from mldebug.capture.trace.merge_text import (
    event_object,
    left_out,
    merged_lines,
    merged_object,
)
from mldebug.capture.trace.open_files import is_ring, open_ring, ring_files, source_here
from mldebug.capture.trace.reader import Read, read_last, read_whole
from mldebug.capture.trace.records import Ring, RingHeader
from mldebug.core.errors import EvidenceError, UsageError
from mldebug.core.files import without_collector
from mldebug.core.output_file import write_file

NO_RING = "give a file that `mldebug trace run` or `mldebug run --trace` has written"
LOG_PIDS = (
    "log_pids=1"  # said by NicerTrace: its user wants to tell the lines of several rings apart
)
_FILE = click.Path(path_type=Path, readable=False)
_FORMATS: dict[str, Callable[[Sequence[Ring]], Iterator[bytes]]] = {
    "chrome": chrome,
    "speedscope": speedscope,
}


@click.command("show")
@click.argument("file", type=_FILE)
@click.option("--tail", type=click.IntRange(min=1), metavar="N", help="Only the last N records.")
@click.option("--tree", is_flag=True, help="The call tree: time, calls, * for what did not return.")
@click.option("--no-source", is_flag=True, help="Read no source files.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def show(file: Path, tail: int | None, tree: bool, no_source: bool, as_json: bool) -> None:
    """Print what a traced process did last, oldest first.

    FILE is its ring. It may be read while it is written, and after its process has died.
    """
    with without_collector(), loaded([file], tail) as (ring,):
        if as_json:
            _print(ring_json(ring), "")
            return
        body = tree_lines(ring) if tree else _text(ring, no_source)
        _print(chain(heading(ring), body))


def _print(some: Iterator[str], end: str = "\n") -> None:
    """Many lines at once: there may be millions."""
    while block := list(islice(some, 1000)):
        click.echo(end.join(block), nl=bool(end))


def _text(ring: Ring, without: bool) -> Iterator[str]:
    text = lines(ring, ring.events, no_source if without else source_here)
    if LOG_PIDS not in ring.header.followed.split():
        return text
    return (f"{ring.header.pid}: {line}" for line in text)


@click.command("export")
@click.argument("files", type=_FILE, nargs=-1, required=True)
@click.option("--output", "-o", type=_FILE, required=True, help="File to write; - for stdout.")
@click.option("--format", "form", type=click.Choice(list(_FORMATS)), help="By default by its name.")
@click.option("--tail", type=click.IntRange(min=1), metavar="N", help="Only the last N of each.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
def export(
    files: tuple[Path, ...], output: Path, form: str | None, tail: int | None, force: bool
) -> None:
    """Write rings in a form that viewers read.

    chrome: for Perfetto (ui.perfetto.dev) and chrome://tracing, all ranks in one picture. speedscope: for speedscope.app;
    the form of a file that ends in .speedscope.json. FILES are rings, or folders of rings.
    """
    chosen = form or ("speedscope" if ".speedscope." in output.name else "chrome")
    with without_collector(), loaded(ring_files(files), tail) as rings:
        _write(output, _FORMATS[chosen](rings), force)


@click.command("merge")
@click.argument("files", type=_FILE, nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def merge(files: tuple[Path, ...], as_json: bool) -> None:
    """Align the rings of all ranks by step, and say where they parted.

    FILES are rings, or folders of rings: copy those of other nodes here.
    """
    with without_collector(), loaded(ring_files(files), None) as rings:
        merged = merge_rings(numbered(rings))
        left = list(left_out(rings, merged))
    if as_json:
        click.echo(msgspec.json.encode({**merged_object(merged), "left_out": left}).decode())
        return
    _print(chain(merged_lines(merged), left))


@contextmanager
def loaded(files: Sequence[Path], tail: int | None) -> Iterator[list[Ring]]:
    """A context with the rings in these files as a list; their events are read from the open files when iterated, with `tail`
    only the last ones at once. Raises EvidenceError, with what to do, for a file that is no ring. Raises this process's limit of
    open files.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # of thousands of ranks each has a ring
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        yield [_loaded(file, stack.enter_context(open_ring(file)), tail) for file in files]


def _loaded(file: Path, read: Read, tail: int | None) -> Ring:
    try:
        return read_whole(read) if tail is None else read_last(read, tail)
    except ValueError as error:
        raise EvidenceError(f"{file} cannot be shown: {error}", NO_RING) from error
    except OSError as error:
        raise EvidenceError(f"cannot read {file}: {error.strerror}", NO_RING) from error


def _write(output: Path, pieces: Iterator[bytes], force: bool) -> None:
    if str(output) == "-":
        sys.stdout.buffer.writelines(pieces)
        return
    if force and is_ring(output):  # whoever empties it kills the process that writes it, by SIGBUS
        raise UsageError(f"{output} is itself a trace ring", "name another file")
    write_file(output, pieces, force)


# --- what stands above a ring ----------------------------------------------------------------------


def heading(ring: Ring) -> Iterator[str]:
    """The lines above a printed trace: its rank and process, what was traced, when the last record was written, and what is
    missing.
    """
    header = ring.header
    yield process_name(header)
    yield _traced(header)
    if ring.newest is not None:
        yield f"last record {_moment(ring.newest + header.offset_ns)}; {len(ring.events):,} shown"
    if any(thread.cut for thread in ring.threads.values()):
        yield "older records were overwritten, or are not shown"
    if header.dropped:
        yield f"{header.dropped:,} events found no room"
    yield from ring.broken


def _traced(header: RingHeader) -> str:
    state = header.state or "state unknown"
    words = [header.traced, header.followed, header.engine, header.python]
    described = ", ".join(word for word in words if word)
    return f"{state}{f' ({header.why})' if header.why else ''}: {described or 'nothing is described of it'}"


def _moment(nanoseconds: int) -> str:
    """A moment in words; a torn header may hold any number."""
    try:
        return f"{datetime.fromtimestamp(nanoseconds / 1e9, UTC):%Y-%m-%d %H:%M:%S.%f} UTC"
    except (OverflowError, ValueError, OSError):
        return "at an impossible time"


def ring_json(ring: Ring) -> Iterator[str]:
    """The events of one call trace as JSON; times in nanoseconds of the writer's monotonic clock, `offset_ns` converts them to
    unix time.
    """
    header = msgspec.structs.asdict(ring.header)
    head = {
        "header": {**header, "offset_ns": ring.header.offset_ns},
        "threads": {str(number): thread._asdict() for number, thread in ring.threads.items()},
        "broken": list(ring.broken),
    }
    yield msgspec.json.encode(head)[:-1].decode() + ',"events":['
    between = ""
    for event in ring.events:
        yield between + msgspec.json.encode(event_object(event)).decode()
        between = ","
    yield "]}\n"
