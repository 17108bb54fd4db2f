"""Whether a process is frozen by its cgroup, as in a paused container: the kernel's freezer of cgroup v2 and v1.

The kernel answers these files from memory. A frozen process shows state S (v2) or D (v1), and no
signal wakes it.
"""

from collections.abc import Callable, Iterator

from mldebug.core.model import ThreadState
from mldebug_agents.system.procfs import parse_cgroups

FREEZERS = frozenset(
    ("get_signal", "do_freezer_trap", "__refrigerator", "do_signal_stop", "cgroup_freezing", "")
)
"""Where a frozen thread may be found to wait; "" where that cannot be read."""
ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer")
MAX_PATH = 4096

ReadText = Callable[[str], str]


def may_be_frozen(thread: ThreadState | None) -> bool:
    """Whether the state of this thread allows that it is frozen. Only then its cgroup needs to be read."""
    if thread is None or thread.state == "R":
        return False
    return thread.state == "D" or thread.wchan in FREEZERS


def frozen_by(cgroups: str, read: ReadText) -> str:
    """The path of the cgroup that has frozen a process; "" where none has.

    `cgroups`: the text of its /proc/PID/cgroup; `read(path)` returns the text of a file below /sys,
    "" where there is none.
    """
    for path, unified in _freezers(cgroups):
        for root in ROOTS:
            if unified and "frozen 1" in read(f"{root}{path}/cgroup.events").splitlines():
                return path
            if not unified and read(f"{root}{path}/freezer.state").strip() == "FROZEN":
                return path
    return ""


def _freezers(cgroups: str) -> Iterator[tuple[str, bool]]:
    """(path, whether it is of cgroup v2) of the cgroups that may freeze it. The root of a hierarchy cannot."""
    for controllers, path in parse_cgroups(cgroups):
        outside = f"{path}/".startswith("/../")  # of the cgroup namespace: not to be read
        usable = path.startswith("/") and path != "/" and not outside and len(path) < MAX_PATH
        if usable and (not controllers or "freezer" in controllers):
            yield path, not controllers
