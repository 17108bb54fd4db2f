"""What stands below Python: gdb's `bt` and `py-bt` of all threads, pstack, eu-stack, lldb's `bt all`, and the kernel's `/proc/PID/stack`."""

import re

from mldebug.capture.stacks.form import (
    StackForm,
    ThreadHead,
    line_number,
    named_frame,
    native_frame,
    number,
)
from mldebug.core.model import Frame
from mldebug.core.redact import clean

_PYTHON_IN_NATIVE = (
    re.compile(  # gdb with Python's own extension shows the frame object among the arguments
        r"for file (?P<path>[^,]{1,1000}), line (?P<line>\d{1,40}), in (?P<function>[\w.<>]{1,300})"
    )
)


def _head(match: re.Match[str]) -> ThreadHead:
    return ThreadHead(
        number=number(match["lwp"] or match["tid"] or match["turned"]),
        name=clean(match["name"] or "", 64),
        own=True,
        main=1 in (line_number(match["index"]), line_number(match["turn"]))
        or bool(match["start"] or match["alone"]),
    )


def _frame(match: re.Match[str]) -> Frame | None:
    if match["path"]:
        return named_frame(match["path"], match["line"], match["function"])
    rest = match["rest"] or ""
    if python := _PYTHON_IN_NATIVE.search(rest):
        return named_frame(python["path"], python["line"], python["function"])
    name, _, after = rest.partition(" (")
    source = re.search(r" at (\S{1,1000}?):(\d{1,9})$", after)
    library = re.search(r" from (\S{1,1000})$", after)
    if source:
        return native_frame(name, source[1], source[2])
    return native_frame(name, library[1] if library else "")


GDB = StackForm(
    name="gdb",
    process=re.compile(
        r"^\s*(?:Attaching to process |Attaching to program: .*, process |\[Inferior \d+ \(process |PID )(?P<pid>\d{1,10})"
        r"(?:\) detached\])?(?: - (?P<command>.*))?(?: - process)?$"
    ),
    thread=re.compile(
        r"^\s*(?:Thread (?P<index>\d{1,6}) \((?:Thread 0x[0-9a-f]+ )?\(?(?:LWP|process) (?P<lwp>\d{1,10})\)?.*?"
        r"(?:\"(?P<name>[^\"]*)\".*)?\)?:?"
        r"|TID (?P<tid>\d{1,10}):"
        r"|(?P<start>Traceback) \(most recent call first\):"
        r"|\[Switching to thread (?P<turn>\d{1,6}) \(Thread 0x[0-9a-f]+ \(LWP (?P<turned>\d{1,10})\)\)\]"
        r"|(?P<alone>\((?:cuda-)?gdb\) (?:bt|backtrace|where|py-up)(?: full)?))\s*$"
    ),
    head=_head,
    frame=re.compile(
        r'^\s*File "(?P<path>.{1,1000}?)", line (?P<line>\d{1,40}),? in (?P<function>.{1,300}?)\s*$'
        r"|^\s*#\d{1,5}\s+(?:0x[0-9a-f]+(?: - \d+)?(?: in)?\s+)?(?P<rest>\S.{0,20000})$"
    ),
    make=_frame,
    noise=re.compile(
        r"^\s*<built-in method .*$|^\s*\(.*\)$|^\[(?:New (?:LWP|Thread)|Thread debugging|Switching|Current thread).*$|^Using host libthread_db.*$"
        r"|^\s*Unable to (?:locate|read).*$|^0x[0-9a-f]+ in .*$|^\d+\s+(?:\.\.?/|in ).*$|^ {4,}\S.*$|^(?:GNU gdb|Copyright|License|Reading symbols|warning:).*$"
        r"|^\s*(?:at|from) \S.*$|^--Type <RET>.*$|^---Type <return>.*$|^(?:\((?:cuda-)?gdb\) )?(?:thread|thr|t|info|py-(?:bt|up|down|list)|set|frame|detach|quit|q|attach|c|continue)\b.*$"
        r"|^[ *]{0,8}(?:Id {1,20}Target Id\b|\d{1,6} {1,20}Thread 0x).*$|^\(unable to read python frame information\)$"
    ),
    main_last=True,
)


def _lldb_head(match: re.Match[str]) -> ThreadHead:
    return ThreadHead(
        number=number(match["number"]),
        name=clean(match["name"] or "", 64),
        main=line_number(match["index"]) == 1,
    )


def _lldb_frame(match: re.Match[str]) -> Frame:
    name = re.sub(r" \+ \d+$", "", match["function"])
    source = re.search(r" at (\S{1,1000}?):(\d{1,9})(?::\d+)?$", name)
    return native_frame(name, source[1] if source else match["library"], source and source[2])


LLDB = StackForm(
    name="lldb",
    process=re.compile(r"^\s*Process (?P<pid>\d{1,10}) stopped$"),
    thread=re.compile(
        r"^[\s*]*thread #(?P<index>\d{1,6})(?:, tid = (?P<number>\w{1,18}))?(?:, (?:name|queue) = '(?P<name>[^']*)')?.*$"
    ),
    head=_lldb_head,
    frame=re.compile(
        r"^[\s*]*frame #\d{1,5}: (?:0x[0-9a-f]+ )?(?P<library>[^`\s]{0,1000})`(?P<function>.{1,20000})$"
    ),
    make=_lldb_frame,
)


# --- the kernel: `cat /proc/PID/stack`, alone or beside a dump of the same process. Source: Linux fs/proc/base.c ---

_ENTRY = re.compile(r"entry_SYSCALL\w*|ret_from_fork\w*|do_syscall_64|(?:do_)?el0t?_[\w.]+|invoke_syscall|system_call\w*")  # fmt: skip
_SCHEDULER = re.compile(r"(?:io_)?schedule\w*|__schedule|__switch_to\w*")


def _kernel_head(match: re.Match[str]) -> ThreadHead:
    return ThreadHead(number=line_number(match["tid"] or match["pid"]), own=True, main=match["tid"] in (None, match["pid"]))  # fmt: skip


def _kernel_frame(match: re.Match[str]) -> Frame:
    return native_frame(match["function"])


KERNEL = StackForm(
    name="kernel",
    thread=re.compile(
        r"^\s*(?:==> |[-=#*]{1,10} |(?:\S{0,200}[$#%] |\+{1,4} )?(?:sudo )?(?:cat )?)"
        r"/proc/(?P<pid>\d{1,10})/(?:task/(?P<tid>\d{1,10})/)?stack(?: <==|:| [-=#*]{1,10})?\s*$"
    ),
    head=_kernel_head,
    frame=re.compile(
        r"^\s*\[<[0-9a-fx]{1,18}>\] (?:\? )?(?P<function>[A-Za-z_][\w.]{0,200})\+0x[0-9a-f]{1,8}/0x[0-9a-f]{1,8}(?: \[[\w-]{1,64}\])?\s*$"
    ),
    make=_kernel_frame,
    noise=re.compile(r"^\s*(?:\[<[0-9a-fx]{1,18}>\] )?0xf{8,16}\s*$"),
)


def enters_kernel(function: str) -> bool:
    """Whether a program enters the kernel by this function: those are the outermost of a kernel stack."""
    return _ENTRY.fullmatch(function) is not None


def kernel_functions(frames: list[Frame]) -> tuple[str, ...]:
    """The functions of a kernel stack, innermost first, without those of the scheduler itself and the entry: what the thread waits in."""
    named = [one.function for one in frames if not enters_kernel(one.function)]
    return tuple(one for one in named if not _SCHEDULER.fullmatch(one)) or tuple(named)
