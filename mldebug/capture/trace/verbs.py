"""`mldebug trace show`, `export` and `merge`: what the rings of traced processes say. They read files, and nothing else.

A call tree shows for each thread which function called which, how often and how long; open calls are marked.
"""

import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path

import click
import msgspec

from mldebug.capture.trace.export import chrome, process_name, speedscope
from mldebug.capture.trace.line_format import frame_words, lines, no_source
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
from mldebug.capture.trace.records import Ring, RingHeader, TracedFunction
from mldebug.capture.trace.spans import CallEdge, edges
from mldebug.core.errors import EvidenceError, UsageError
from mldebug.core.files import without_collector
from mldebug.core.output_file import write_file
from mldebug.core.progress import progress_line

MAX_SHOWN = 2_000  # lines of a tree
MAX_INDENT = 40


class CallNode:
    """All calls of one function from one place in the call tree. `nanoseconds`: their time, with all that they called."""

    __slots__ = ("calls", "children", "nanoseconds", "open", "place")

    def __init__(self, place: TracedFunction) -> None:
        self.place = place
        self.calls = 0
        self.nanoseconds = 0
        self.open = False  # had one not returned when the ring was read?
        self.children: dict[TracedFunction, CallNode] = {}

    def child(self, place: TracedFunction) -> "CallNode":
        """The node for a function called from this one; made where there is none."""
        found = self.children.get(place)
        if found is None:
            found = self.children[place] = CallNode(place)
        return found


def call_tree(some: Iterable[CallEdge], end: int) -> CallNode:
    """The call tree of one thread, from the edges of its calls; the root stands for no function. `end`: the time of the ring's
    last record, at which open calls are counted to end.
    """
    root = CallNode(TracedFunction(""))
    stack: list[tuple[CallNode, int]] = []
    for edge in some:
        if edge.opens:
            node = (stack[-1][0] if stack else root).child(edge.place)
            node.calls += not edge.again
            stack.append((node, edge.at))
        else:
            node, since = stack.pop()
            node.nanoseconds += edge.at - since
            node.open = node.open or (not edge.recorded and edge.at == end)
    return root


def tree_lines(ring: Ring) -> Iterator[str]:
    """The call trees of all threads as lines, indented by depth: `12.345 ms 3 x * train:40 train_step`; `*` marks a call that has
    not returned.
    """
    end = ring.newest or 0
    shown = 0
    for thread, some in edges(ring.events, sorted(ring.threads)):
        name = ring.name(thread)
        yield f"--- thread {thread}{f' ({name})' if name else ''} ---"
        for depth, node in _walk(call_tree(some, end)):
            shown += 1
            if shown > MAX_SHOWN:
                yield "… more calls: --tail N shows those of the last N records"
                return
            yield _line(depth, node)


def _line(depth: int, node: CallNode) -> str:
    spent = f"{node.nanoseconds / 1e6:12,.3f} ms {node.calls:>8,} x"
    indent = "  " * min(depth, MAX_INDENT)
    return f"{spent} {'*' if node.open else ' '} {indent}{frame_words(node.place)}"


def _walk(root: CallNode) -> Iterator[tuple[int, CallNode]]:
    """Depth first without recursion, the dearest child first."""
    waiting = [(0, one) for one in _dearest_last(root)]
    while waiting:
        depth, node = waiting.pop()
        yield depth, node
        waiting += [(depth + 1, one) for one in _dearest_last(node)]


def _dearest_last(node: CallNode) -> list[CallNode]:
    return sorted(node.children.values(), key=lambda one: one.nanoseconds)


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
    reading = progress_line("reading the ring")
    with reading as line, without_collector(), loaded([file], tail) as (ring,):
        show_block = line.before(_echo)
        if as_json:
            _print(ring_json(ring), show_block, "")
            return
        body = tree_lines(ring) if tree else _text(ring, no_source)
        _print(chain(heading(ring), body), show_block)


def _print(some: Iterator[str], show_block: Callable[[str], None], end: str = "\n") -> None:
    """Many lines at once: there may be millions."""
    while block := list(islice(some, 1000)):
        show_block(end.join(block) + end)


def _echo(block: str) -> None:
    click.echo(block, nl=False)


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
    writing = progress_line("reading the rings")
    with writing, without_collector(), loaded(ring_files(files), tail) as rings:
        _write(output, _FORMATS[chosen](rings), force)


@click.command("merge")
@click.argument("files", type=_FILE, nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def merge(files: tuple[Path, ...], as_json: bool) -> None:
    """Align the rings of all ranks by step, and say where they parted.

    FILES are rings, or folders of rings: copy those of other nodes here.
    """
    reading = progress_line("reading the rings")
    with reading, without_collector(), loaded(ring_files(files), None) as rings:
        merged = merge_rings(numbered(rings))
        left = list(left_out(rings, merged))
    if as_json:
        click.echo(msgspec.json.encode({**merged_object(merged), "left_out": left}).decode())
        return
    _print(chain(merged_lines(merged), left), _echo)


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
