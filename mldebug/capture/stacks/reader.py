"""From a text to processes with their threads, whatever forms, prefixes and headings it has; what was not read is counted."""

import re

import msgspec

from mldebug.capture.folded_stacks import is_folded, take_folded
from mldebug.capture.stacks.austin import AUSTIN
from mldebug.capture.stacks.faulthandler import FAULTHANDLER
from mldebug.capture.stacks.form import StackForm, ThreadHead
from mldebug.capture.stacks.gdb import GDB, KERNEL, LLDB, enters_kernel
from mldebug.capture.stacks.json_form import is_json, take_json
from mldebug.capture.stacks.prefixes import (
    SHELL_LINES,
    Label,
    LabelledLine,
    plain,
    unprefixed,
)
from mldebug.capture.stacks.process_text import ProcessText, ThreadBlock, ThreadText, joined, split
from mldebug.capture.stacks.pyspy import TEXT as PY_SPY
from mldebug.capture.stacks.pystack import PYSTACK
from mldebug.capture.stacks.tracebacks import TRACEBACKS, headless_lines, last_steps
from mldebug.core.redact import clean, safe_line

FORMS: tuple[StackForm, ...] = (
    PY_SPY,
    FAULTHANDLER,
    PYSTACK,
    TRACEBACKS,
    AUSTIN,
    GDB,
    LLDB,
    KERNEL,
)
MAX_PROCESSES = 100_000
MAX_BROKEN = 20
MAX_HEADLESS = 600  # lines of a stack without heading: frames and their source

_WORTH_A_LOOK = re.compile(
    r"[(\"#\[\]{}`:!]|detached|PID|TID|stopped|process"
)  # in every line of every form
_FIRST_FRAME = re.compile(
    r"^\s*#0\s+(?:0x[0-9a-f]{6,16} in \S|[\w:~@.]{1,200}(?:<.{0,400}>)? ?\(.*\))"
)
_PARENT = re.compile(r"^\s*Parent Process (?P<pid>\d{1,10})(?:: (?P<command>.*))?$")
_RULE = re.compile(r"^[-=#*_~─—]{4,}$")
_FENCE = re.compile(r"^\s*(?:```\w*|~~~\w*|</?(?:details|summary|pre|code)>.*)$")
_ENVIRONMENT = re.compile(
    r"^\s*(?:export |declare -x )?(?P<name>(?:LOCAL_|GROUP_|NODE_)?RANK|(?:LOCAL_)?WORLD_SIZE|SLURM_(?:PROCID|LOCALID|NTASKS|NODEID)"
    r"|OMPI_COMM_WORLD_(?:LOCAL_)?(?:RANK|SIZE)|PMI_(?:RANK|SIZE)|JAX_PROCESS_ID|HOSTNAME|SLURMD_NODENAME)=\"?(?P<value>[\w.-]{1,253})\"?$"
)
_OTHER_VARIABLE = re.compile(r"^[A-Z_][A-Z0-9_]{1,60}=\S*$")
_STATE = re.compile(
    r"^\s*State:\s+(?P<letter>[RSDTtZXI])\b(?: \([\w ]{1,30}\))?$"
)  # of /proc/PID/status
_MARKS = r"[-=#*>\s\[\]]{0,80}"
_HEADINGS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"^==> (?P<file>.{1,1000}) <==$",
        rf"^{_MARKS}(?:global[ _-]?)?rank[ _:=#-]{{0,3}}(?P<rank>\d{{1,6}})\b(?:.{{0,40}}?\bpid[ _:=#]{{0,3}}(?P<pid>\d{{1,10}}))?(?:[^()\"]|\([^()\":/]{{0,80}}\)){{0,80}}$",
        rf"^{_MARKS}(?:py-spy dump )?(?:--)?(?:pid|process)[ _:=#-]{{0,3}}(?P<pid>\d{{1,10}})\b[-=#*:\s\]]{{0,80}}$",
        rf"^{_MARKS}(?:node|host|hostname|pod|container)[ _:=#]{{1,3}}(?P<host>[\w.-]{{1,253}})[-=#*:\s\]]{{0,80}}$",
        r"^(?:[A-Z]{4,8}:\w{1,60}:)?Process (?P<rank>\d{1,6}) timed out with traceback:\s*$",  # torch/testing
        r"^(?:={2,80}|#{2,80}|-{2,80}|\*{2,80}|>{2,80}) ?(?P<host>(?=\S{0,252}[a-z])[a-z\d][\w.-]{0,251}\d) ?(?:={2,80}|#{2,80}|-{2,80}|\*{2,80}|<{2,80}|:)?$",
        r"^(?P<host>[\w.-]{1,253}) \| (?:CHANGED|SUCCESS|FAILED)\b.{0,80}>>$",
        *SHELL_LINES,
        r"^\[\d{1,6}\] \d\d:\d\d:\d\d \[(?:SUCCESS|FAILURE)\] (?P<host>[\w.-]{1,253}).{0,200}$",
    )
)
_NODES = re.compile(r"^(?P<host>[\w.,\[\]-]{1,1000}?)(?: \(\d{1,6}\))?$")


class StackText(msgspec.Struct, frozen=True):
    """The result of reading one text of stacks: its processes in order, how many lines looked like stacks and could not be read (`unread`), and the first of those lines."""

    processes: tuple[ProcessText, ...] = ()
    unread: int = 0
    first: str = ""
    lines: int = 0


def read_text(text: str) -> StackText:
    """Read a text of stacks in any known form. What cannot be read is counted; never raises for what the text holds."""
    lines = plain(text)
    streams: dict[Label, _Stream] = {}
    for line in unprefixed(lines, is_stack_line):
        if line.label not in streams:
            streams[line.label] = _Stream(line.label)
        streams[line.label].lines.append(line)
    found = [process for stream in streams.values() for process in stream.processes()]
    unread = sorted(line for stream in streams.values() for line in stream.unread)
    return StackText(
        processes=tuple(sorted(found, key=lambda one: one.number))[:MAX_PROCESSES],
        unread=len(unread),
        first=safe_line(unread[0][1], 120) if unread else "",
        lines=sum(1 for line in lines if line.strip()),
    )


def is_stack_line(line: str) -> bool:
    """Whether this line belongs to one of the known forms of stacks."""
    if not line or len(line) > 30_000:
        return False
    if not _WORTH_A_LOOK.search(line):
        return False
    return bool(
        any(form.frame.match(line) for form in FORMS)
        or is_json(line)
        or is_folded(line)
        or _PARENT.match(line)
        or any(form.thread.match(line) for form in FORMS)
        or any(form.process is not None and form.process.match(line) for form in FORMS)
    )


class _Stream:
    """The lines of one label: cut into blocks, one for each heading or process line, then into processes."""

    def __init__(self, label: Label) -> None:
        self.label = label
        self.lines: list[LabelledLine] = []
        self.unread: list[tuple[int, str]] = []
        self._heading = ProcessText(label=label)
        self._blocks: list[ThreadBlock] = []
        self._form: StackForm | None = None
        self._variables: dict[str, str] = {}
        self._variables_first: bool | None = None
        self._gone_on_until = 0  # line: what stands above it shows nobody's place any more
        self._broken = 0  # values that looked like JSON of stacks and were not

    def processes(self) -> list[ProcessText]:
        """All processes of the stream, each once."""
        index = 0
        self._gone_on_until = last_steps(one.text for one in self.lines)
        while index < len(self.lines):
            index += self._take(index)
        self._close_variables()
        found = [one for block in self._blocks for one in split(block)]
        return joined(found)

    # --- one line ------------------------------------------------------------------------------------

    def _take(self, index: int) -> int:
        """Take the line at that place; returns how many lines were taken."""
        line = self.lines[index]
        text = line.text
        if len(text) > 30_000:
            self.unread.append((line.number, text[:200]))
            return 1
        if _FIRST_FRAME.match(text):
            self._first_frame(line)
        elif match := KERNEL.frame.match(text):
            self._kernel_frame(line, match["function"])
        if not text.strip() or self._frame(text) or _FENCE.match(text):
            return 1
        if is_json(text) and (taken := self._take_json(index)):
            return taken
        if taken := self._take_folded(index) or self._take_headless(index):
            return taken
        if taken := self._host_between_rules(index):
            return taken
        if not (
            self._process(line) or self._thread(line) or self._inside(text) or self._beside(text)
        ):
            self.unread.append((line.number, text))
        return 1

    def _take_json(self, index: int) -> int:
        """A JSON value that begins here; 0 where none does."""
        if self._broken >= MAX_BROKEN:
            return 0
        found = take_json(self.lines[at].text for at in range(index, len(self.lines)))
        self._broken += not found.lines
        for one in found.processes:
            self._begin(self.lines[index].number, one.pid, one.command)
            self._blocks[-1].set_json(one.stacks)
        self._form = None
        return found.lines

    def _take_headless(self, index: int) -> int:
        """A stack that no heading begins; 0 where the line is none of one."""
        if not TRACEBACKS.frame.match(self.lines[index].text) or index < self._gone_on_until:
            return 0
        before = self.lines[index - 1].text if index else ""
        end = min(index + MAX_HEADLESS, len(self.lines))
        count = headless_lines(before, (self.lines[at].text for at in range(index, end)))
        texts = [one.text for one in self.lines[index : index + count]]
        found = [match for text in texts if (match := TRACEBACKS.frame.match(text))]
        if found:
            self._begin(self.lines[index].number, self._heading.pid, "")
            frames = [frame for match in found if (frame := TRACEBACKS.make(match))]
            head = ThreadHead(main=True)
            self._blocks[-1].threads.append(ThreadText(head, TRACEBACKS, self.lines[index].number, frames))  # fmt: skip
            self._form = None
        return count

    def _take_folded(self, index: int) -> int:
        """The folded stacks of one process that begin here; 0 where the line is none."""
        found = take_folded(self.lines[at].text for at in range(index, len(self.lines)))
        if found.lines:
            self._begin(self.lines[index].number, found.pid or self._heading.pid, found.command)
            self._blocks[-1].set_json(found.stacks)
            self._form = None
        return found.lines

    def _host_between_rules(self, index: int) -> int:
        """The heading of clush and dshbak: a node between two rules."""
        if not _RULE.match(self.lines[index].text.strip()):
            return 0
        some = [one.text.strip() for one in self.lines[index : index + 3]]
        match = _NODES.match(some[1]) if len(some) == 3 and _RULE.match(some[2]) else None
        if match:
            self._head(host=clean(match["host"], 200))
        return 3 if match else 1

    def _process(self, line: LabelledLine) -> bool:
        if match := _PARENT.match(line.text):
            if self._blocks:
                self._blocks[-1].set_parent(int(match["pid"]))
            return True
        for form in FORMS:
            match = form.process.match(line.text) if form.process else None
            if match:
                groups = match.groupdict()
                pid = int(groups.get("pid") or 0)
                if "detached" not in line.text or not self._of_block(pid):
                    self._begin(line.number, pid, groups.get("command") or "")
                self._form = form
                return True
        return False

    def _of_block(self, pid: int) -> bool:
        """gdb names the process when it leaves it: that is the one whose threads stand before."""
        block = self._blocks[-1] if self._blocks else None
        if block is None or not block.threads or block.process.pid not in (0, pid):
            return False
        return pid in (block.process.pid, *(thread.head.number for thread in block.threads))

    def _thread(self, line: LabelledLine) -> bool:
        for form in FORMS:
            match = form.thread.match(line.text)
            if match is None:
                continue
            last = self._last_thread()
            groups = match.groupdict()
            if groups.get("start") and last and not last.frames:
                return True  # the heading of py-bt below that of its thread
            if "py-up" in (groups.get("alone") or "") and last and last.form is form:
                return True  # the next frame outwards
            if groups.get("alone") and last and last.form is form and last.turned:
                last.frames.clear()  # the one frame that gdb shows as it turns to a thread
                return True
            pid = int(groups.get("pid") or 0)
            if not self._blocks or pid not in (0, self._blocks[-1].process.pid):
                self._begin(line.number, pid or self._heading.pid, "")
            self._form = form
            threads = self._blocks[-1].threads
            if self._blocks[-1].json:
                self._begin(line.number, self._heading.pid, "")
                threads = self._blocks[-1].threads
            turned = bool(groups.get("turn"))
            threads.append(ThreadText(form.head(match), form, line.number, [], turned))
            return True
        return False

    def _last_thread(self) -> ThreadText | None:
        block = self._blocks[-1] if self._blocks else None
        return block.threads[-1] if block and block.threads else None

    def _inside(self, text: str) -> bool:
        """A line of the form of the thread that was begun last, that holds no frame."""
        form = self._form
        return form is not None and form.noise is not None and form.noise.match(text) is not None

    def _frame(self, text: str) -> bool:
        """A frame of the thread that was begun last."""
        form, last = self._form, self._last_thread()
        if form is None or last is None or last.form is not form:
            return False
        match = form.frame.match(text)
        frame = form.make(match) if match else None
        if frame is not None:
            last.frames.append(frame)
        return match is not None

    def _first_frame(self, line: LabelledLine) -> None:
        """A backtrace of gdb that no heading begins: that of a process's only thread, pasted as it was."""
        last = self._last_thread()
        if last is not None and last.form is GDB and not last.frames:
            return
        if not self._blocks or self._blocks[-1].json:
            self._begin(line.number, self._heading.pid, "")
        self._form = GDB
        head = ThreadHead(main=True)
        self._blocks[-1].threads.append(ThreadText(head, GDB, line.number, []))

    def _kernel_frame(self, line: LabelledLine, function: str) -> None:
        """A frame of the kernel: of the process before it, or of one without any heading."""
        last = self._last_thread()
        over = last is not None and bool(last.frames) and enters_kernel(last.frames[-1].function) and not enters_kernel(function)  # fmt: skip
        if last is not None and last.form is KERNEL and not over:
            return
        if not self._blocks or over:
            self._begin(line.number, self._heading.pid, "")
        self._form = KERNEL
        self._blocks[-1].threads.append(ThreadText(ThreadHead(main=True), KERNEL, line.number, []))

    def _beside(self, text: str) -> bool:
        """Variables, the state of a process, headings and rules."""
        if match := _ENVIRONMENT.match(text):
            self._variable(match["name"], match["value"])
            return True
        if self._blocks and (match := _STATE.match(text)):
            self._blocks[-1].set_state(match["letter"])
            return True
        if _OTHER_VARIABLE.match(text) or _RULE.match(text.strip()):
            return True
        for heading in _HEADINGS:
            if match := heading.match(text):
                groups = {key: value for key, value in match.groupdict().items() if value}
                self._head(
                    file=clean(groups.get("file", ""), 500),
                    rank=int(groups.get("rank", -1)),
                    pid=int(groups.get("pid", 0)),
                    host=clean(groups.get("host") or groups.get("node", ""), 200),
                )
                return True
        return any(form.noise is not None and form.noise.match(text) for form in FORMS)

    # --- blocks --------------------------------------------------------------------------------------

    def _head(self, *, file: str = "", rank: int = -1, pid: int = 0, host: str = "") -> None:
        """A heading: what it does not say it leaves, but for a new file or host, where all begins anew."""
        before = ProcessText(label=self.label) if file or host else self._heading
        self._close_variables()
        self._heading = ProcessText(
            label=self.label,
            file=file or before.file,
            rank=rank if rank >= 0 or pid else before.rank,
            pid=pid,
            host=host or before.host,
        )
        self._form = None
        self._blocks.append(ThreadBlock(self._of_heading(0, pid, ""), []))

    def _begin(self, number: int, pid: int, command: str) -> None:
        """A process begins."""
        block = self._blocks[-1] if self._blocks else None
        empty = block is not None and not block.threads and not block.json
        if empty and block is not None and not (block.process.command or block.process.state):
            self._blocks.pop()
        self._blocks.append(ThreadBlock(self._of_heading(number, pid, command), []))
        if self._variables_first:
            self._close_variables()

    def _of_heading(self, number: int, pid: int, command: str) -> ProcessText:
        heading = self._heading
        return ProcessText(
            pid=pid or heading.pid,
            command=clean(command, 4096),
            label=self.label,
            file=heading.file,
            rank=heading.rank,
            host=heading.host,
            number=number,
        )

    def _variable(self, name: str, value: str) -> None:
        """Variables belong to the process after them where the first of the stream stand before any, else to that before."""
        if self._variables_first is None:
            self._variables_first = not any(block.threads or block.json for block in self._blocks)
        if self._variables_first is False and self._blocks:
            self._blocks[-1].add_variables({name: value})
            return
        self._variables[name] = value

    def _close_variables(self) -> None:
        """Give the variables that were collected to the process that has begun after them."""
        if not self._variables:
            return
        if self._blocks:
            self._blocks[-1].add_variables(self._variables)
        self._variables = {}
