"""The text of the line where a process stands: `loss.item()` tells of a wait that leaves no frame of its own."""

from mldebug.capture.stacks import principal, site
from mldebug.core.model import ThreadStack
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader, Unreadable


def source_line(host: Host, reader: Reader, pid: int, stacks: tuple[ThreadStack, ...]) -> str:
    """The innermost line of the job's own code, read through the process's root; "" where it cannot be had."""
    stack = principal(stacks, pid)
    frame = site(stack.frames) if stack else None
    if frame is None or not frame.path.startswith("/") or not frame.line:
        return ""
    line = reader.read_line(f"{host.root_of(pid)}{frame.path}", frame.line)
    return "" if isinstance(line, Unreadable) else line.strip()
