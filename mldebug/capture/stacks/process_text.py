"""Makes processes from the threads in a text of stacks: where one process ends and the next begins, which thread is the main one,
and which dumps are of the same process.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from mldebug.capture.frames import python_frames
from mldebug.capture.stacks.faulthandler import FAULTHANDLER
from mldebug.capture.stacks.form import MAX_FRAMES, StackForm, ThreadHead
from mldebug.capture.stacks.gdb import KERNEL, kernel_functions
from mldebug.capture.stacks.prefixes import Label
from mldebug.capture.stacks.pyspy import MAX_THREADS
from mldebug.core.model import MAIN_THREAD, Frame, ThreadStack

LOCAL_VARIABLES = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
GDB_FORM = "gdb"
_IN_THREADS = ("_bootstrap", "_bootstrap_inner", "Thread._bootstrap", "Thread._bootstrap_inner")
_STARTS = ("<module>", "_run_module_as_main", "_run_code")


class ProcessText(msgspec.Struct, kw_only=True):
    """What a text of stacks shows of one process; 0, -1 or "" for what the text does not say."""

    pid: int = 0
    parent: int = 0
    command: str = ""
    stacks: tuple[ThreadStack, ...] = ()
    native: tuple[ThreadStack, ...] = ()
    kernel: tuple[
        str, ...
    ] = ()  # functions of the kernel in which its main thread waits, innermost first
    state: str = ""  # the kernel's letter for it: R, S, D, T …
    label: Label = Label()
    file: str = ""  # that a heading names inside the text
    rank: int = -1  # that a heading names
    host: str = ""  # that a heading names
    environment: dict[str, str] = {}
    times: int = 1  # how often it was dumped: the last counts
    turn: int = 0  # how often its pid stood in the text before, with others in between
    number: int = 0  # of its first line
    form: str = ""

    @property
    def main(self) -> ThreadStack | None:
        """The main thread of the process, with Python frames if there are any; None where none could be found."""
        every = (*self.stacks, *self.native)
        return next((one for one in every if one.name == MAIN_THREAD), None)


class ThreadText(msgspec.Struct):
    """One thread as it stands in a text: its heading, and its frames in the order of the text."""

    head: ThreadHead
    form: StackForm
    number: int
    frames: list[Frame] = []
    turned: bool = False  # a debugger has turned to it, and its backtrace is still to come


class ThreadBlock(msgspec.Struct):
    """The threads below one heading of a text: of one process or, where there is no heading, of several."""

    process: ProcessText
    threads: list[ThreadText] = []
    json: tuple[ThreadStack, ...] = ()

    def set_json(self, stacks: tuple[ThreadStack, ...]) -> None:
        """Set the stacks that a JSON value in the text holds; they are used in place of those written as text."""
        self.json = stacks

    def set_parent(self, pid: int) -> None:
        """Set the pid of the parent of this block's process."""
        self.process.parent = pid

    def set_state(self, letter: str) -> None:
        """Set the kernel's letter for the state of this block's process."""
        self.process.state = letter

    def add_variables(self, variables: Mapping[str, str]) -> None:
        """Add environment variables to those known of the block's process."""
        self.process.environment = {**self.process.environment, **variables}


def split(block: ThreadBlock) -> Iterator[ProcessText]:
    """The processes of a block. Where no heading names them, each main thread begins or ends a process, as its form of stacks has
    it. A kernel stack belongs to the only process of its block, or is all that is known of one.
    """
    kernel = [one for one in block.threads if one.form is KERNEL and one.frames]
    block.threads = [one for one in block.threads if one.form is not KERNEL]
    found = list(_of_programs(block))
    main = next((one for one in kernel if one.head.main), None)
    if not found and (main or block.process.state):
        number = main.number if main else block.process.number
        found = [msgspec.structs.replace(block.process, number=number, form=KERNEL.name)]
    if main and len(found) == 1:
        found[0].kernel = kernel_functions(main.frames)
    yield from found


def _of_programs(block: ThreadBlock) -> Iterator[ProcessText]:
    if block.json:
        named = _main_named([(one, False) for one in block.json], last=False)
        yield _process(block.process, named)
        return
    for index, threads in enumerate(_parts(block.threads)):
        if index:  # pasted behind another one's Process line
            block.process = msgspec.structs.replace(block.process, pid=0, command="", parent=0)
        if threads:
            stacks = [(_stack(one), one.head.main) for one in threads[:MAX_THREADS]]
            last = threads[0].form.main_last and not _begins_with_own(threads, block.process.pid)
            found = _process(block.process, _main_named(stacks, last))
            main = next((t for t in found.stacks if t.name == MAIN_THREAD), None)
            own = {one.head.number for one in threads if one.head.own}
            if not found.pid and main is not None and main.tid in own:
                found.pid = main.tid
            found.number = found.number or threads[0].number
            found.form = threads[0].form.name
            yield found


def _begins_with_own(threads: list[ThreadText], pid: int) -> bool:
    """Whether the first thread has the process's own number: eu-stack begins with the main thread, gdb ends with it."""
    return pid > 0 and threads[0].head.number == pid


def _process(of: ProcessText, stacks: tuple[ThreadStack, ...]) -> ProcessText:
    native = any(frame.native for one in stacks for frame in one.frames)
    return msgspec.structs.replace(of, stacks=stacks, native=stacks if native else ())


def _stack(thread: ThreadText) -> ThreadStack:
    head = thread.head
    frames = thread.frames[::-1] if thread.form.outermost_first else thread.frames
    return ThreadStack(
        tid=head.number,
        name=head.name,
        active=head.active,
        owns_gil=head.owns_gil,
        frames=_both_ends(frames),
        activity_unknown=not thread.form.tells_activity,
    )


def _both_ends(frames: list[Frame]) -> tuple[Frame, ...]:
    """Cut endless recursion in the middle: where it stands and where it came from both stay."""
    if len(frames) <= MAX_FRAMES:
        return tuple(frames)
    hidden = Frame(function=f"… {len(frames) - MAX_FRAMES} frames left out …", file="cut.py")
    return (*frames[:100], hidden, *frames[-49:])


def _parts(threads: list[ThreadText]) -> list[list[ThreadText]]:
    """Threads without a process line, cut where a second main thread shows a second process."""
    parts: list[list[ThreadText]] = [[]]
    ended = False
    for thread in threads:
        main = _is_main(thread)
        other_form = bool(parts[-1]) and parts[-1][-1].form is not thread.form
        second = main and not thread.form.main_last and any(map(_is_main, parts[-1]))
        if ended or other_form or second:
            parts.append([])
        parts[-1].append(thread)
        ended = main and thread.form.main_last
    return parts


def _is_main(thread: ThreadText) -> bool:
    """Does the form, its name or its outermost frame say so?"""
    if thread.head.main or thread.head.name == MAIN_THREAD:
        return True
    frames = thread.frames
    if not frames or thread.head.name:
        return thread.form.outermost_first and bool(frames) and frames[0].function in _STARTS
    return frames[-1].function in _STARTS


def _main_named(stacks: list[tuple[ThreadStack, bool]], last: bool) -> tuple[ThreadStack, ...]:
    """The stacks with the main one called MainThread; each form has its order."""
    plain_stacks = [one for one, _ in stacks]
    if any(one.name == MAIN_THREAD for one in plain_stacks):
        return tuple(plain_stacks)
    marked = [index for index, (_, main) in enumerate(stacks) if main]
    starts = [i for i, one in enumerate(plain_stacks) if _outermost(one) in _STARTS]
    others = [
        i for i, one in enumerate(plain_stacks) if one.frames and _outermost(one) not in _IN_THREADS
    ]
    among = marked or starts or others or list(range(len(stacks)))
    if among:
        index = among[-1] if last else among[0]
        plain_stacks[index] = msgspec.structs.replace(plain_stacks[index], name=MAIN_THREAD)
    return tuple(plain_stacks)


def _outermost(stack: ThreadStack) -> str:
    python = python_frames(stack.frames)
    return python[-1].function if python else ""


def joined(found: Iterable[ProcessText]) -> list[ProcessText]:
    """The processes with stacks, with several dumps of one process in a row joined into one. Where a process comes again after
    others it is kept as another `turn`.
    """
    kept: list[ProcessText] = []
    turns: dict[object, int] = {}
    for one in found:
        if not (one.stacks or one.kernel or one.state):
            continue
        last = kept[-1] if kept else None
        if last is not None and (
            (_key(one) == _key(last) and (one.pid or _same_main(last, one)))
            or _native_of(last, one)
            or _sides_of_one(last, one)
        ):
            kept[-1] = join(last, one)
            continue
        if one.pid:
            turns[_key(one)] = turns.get(_key(one), -1) + 1
        one.turn = turns.get(_key(one), 0)
        kept.append(one)
    return kept


def _same_main(one: ProcessText, other: ProcessText) -> bool:
    """faulthandler names no process; the address of the main thread differs between any two."""
    mains = (one.main, other.main)
    return (
        one.form == other.form == FAULTHANDLER.name
        and len({m.tid if m else 0 for m in mains} | {0}) == 2
    )


def _native_of(python: ProcessText, native: ProcessText) -> bool:
    """A backtrace of gdb without any heading behind a dump of Python frames is the native side of that process."""
    main = native.main
    headless = native.form == GDB_FORM and not native.pid and main is not None and not main.tid
    place = (python.label, python.host, python.file) == (native.label, native.host, native.file)
    return headless and place and not python.native and python.form != GDB_FORM


def _sides_of_one(before: ProcessText, after: ProcessText) -> bool:
    """gdb's `bt` and `py-bt` behind each other, without a heading between, are the two sides of the thread that it stands at."""
    main = after.main
    headless = len(after.stacks) == 1 and not after.pid and main is not None and not main.tid
    same = _key(before)[:-1] == _key(after)[:-1] and before.form == after.form == GDB_FORM
    sides = {_side(before), _side(after)}
    return headless and same and sides == {"native", "python"}


def _side(process: ProcessText) -> str:
    if not process.native:
        return "python"
    return "native" if process.native == process.stacks else "both"


def _key(process: ProcessText) -> tuple[object, ...]:
    return process.label, process.host, process.file, process.rank, process.pid


def join(before: ProcessText, after: ProcessText) -> ProcessText:
    """Two dumps of one process as one. The later one is preferred; native and Python frames complete each other."""
    kinds = {_way(before), _way(after)}
    plain_one = before if (not before.native and after.native) or not after.stacks else after
    return msgspec.structs.replace(
        after,
        pid=after.pid or before.pid,
        turn=before.turn,
        command=after.command or before.command,
        parent=after.parent or before.parent,
        rank=max(after.rank, before.rank),
        environment=before.environment | after.environment,
        stacks=plain_one.stacks,
        native=after.native or before.native,
        kernel=after.kernel or before.kernel,
        state=after.state or before.state,
        form=plain_one.form,
        times=before.times + (len(kinds) == 1),
        number=before.number,
    )


def _way(process: ProcessText) -> tuple[bool, bool]:
    """In which way it was dumped: native, Python's frames alone, or the kernel's alone."""
    return bool(process.native), bool(process.stacks)


# --- numbers that it tells ---------------------------------------------------------------------------


def local_rank(process: ProcessText) -> int:
    """The local rank (rank on its node) of a process, by its environment, the prefix of its lines or its command line; -1 where
    none says.
    """
    if (rank := first_number(process.environment, LOCAL_VARIABLES)) >= 0:
        return rank
    if process.label.local >= 0:
        return process.label.local
    return argument_number(process.command, r"local[-_]rank")


def first_number(environment: Mapping[str, str], names: Iterable[str]) -> int:
    """The number in the first of these variables that holds one (at most 7 digits); -1 where none does."""
    for name in names:
        value = environment.get(name, "")
        if value.isascii() and value.isdigit() and len(value) < 8:
            return int(value)
    return -1


def argument_number(command: str, name: str, dashes: str = "--?") -> int:
    """The number behind the option `--name=` or `--name ` in a command line; -1 where there is none. `name` and `dashes` are
    regular expressions.
    """
    match = re.search(rf"(?:^|\s){dashes}{name}[= ](\d{{1,7}})(?!\S)", command)
    return int(match[1]) if match else -1
