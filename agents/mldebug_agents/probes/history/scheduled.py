"""Starts `mldebug probe collectives` now and then where the configuration wants it, while nobody trains on this node.

The agent starts none before no job has been here for a while; the command itself looks at GPUs and jobs again before it begins and each moment while it measures, and
ends by itself when one comes (`probes.guard`). Its figures go into the history that the agent shows.
"""

import errno
import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from mldebug.config.schema import ProbesConfig
from mldebug.core.errors import MldebugError
from mldebug.core.redact import clean
from mldebug.core.units import format_duration
from mldebug.status.snapshot import Snapshot
from mldebug_agents.state.key_value_store import KeyValueStore
from mldebug_agents.system.spawn import ProgramStarter
from mldebug_agents.system.workers import Result, Worker

log = logging.getLogger("mldebug")

WORKER, MEMO = "scheduled-probes", "scheduled-probes"
LONGER = 120.0  # seconds more than the measurement: to start and to end
DEADLINE = 900.0
MAX_OUTPUT = 1 << 20
MOST_LINKS = 40  # as the kernel has it


class ProbeStarter:
    """Runs one probe to its end. For one worker thread."""

    def __init__(self, starter: ProgramStarter, state_dir: Path) -> None:
        self._starter, self._state_dir = starter, state_dir

    def run(self, wanted: ProbesConfig) -> str:
        """Run `mldebug probe collectives` on this node, and return the last line that it wrote to stderr.

        Raises MldebugError where it failed, or where others than root may change the Python of `wanted`. Of a busy node, which is not
        measured, the line says so.
        """
        if wanted.python != "auto" and (why := changeable(str(wanted.python))):
            raise MldebugError(f"no scheduled probe is started: {why}", "chown root, chmod go-w")
        argv = (
            sys.executable,
            "-m",
            "mldebug",
            *words(wanted),
            "--state-dir",
            str(self._state_dir),
        )
        done = self._starter.run(
            argv, timeout=wanted.duration + LONGER, max_output=MAX_OUTPUT, env=dict(os.environ)
        )
        last_lines = done.stderr.decode(errors="replace").strip().splitlines() or [""]
        if done.error or done.timed_out or done.returncode != 0:
            why = done.error or ("it did not end in time" if done.timed_out else last_lines[0])
            raise MldebugError(f"the scheduled probe failed: {clean(why, 300)}")
        return clean(last_lines[-1], 300)


def words(wanted: ProbesConfig) -> tuple[str, ...]:
    """The words behind `mldebug` that start such a probe."""
    python = () if wanted.python == "auto" else ("--python", str(wanted.python))
    return (
        *("probe", "collectives", "--if-idle", "--device", wanted.device),
        *("--duration", format_duration(wanted.duration), "--ops", ",".join(wanted.ops)),
        *("--sizes", ",".join(wanted.sizes), *python),
    )


def changeable(program: str) -> str:
    """Why somebody else than this user and root can put another program in the place of this one, or packages into its environment; ""
    where nobody can.
    """
    try:
        places = dict.fromkeys(one for place in _loaded(program) for one in _way_to(place))
        for one in places:
            found = os.lstat(one)
            shared = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
            if found.st_uid not in (0, os.geteuid()):
                return f"user {found.st_uid} can change {clean(one, 200)}"
            if found.st_mode & 0o022 and not shared and not stat.S_ISLNK(found.st_mode):
                return f"its group or everybody can change {clean(one, 200)}"
    except OSError as error:
        return f"{clean(str(error.filename), 200)}: {(error.strerror or str(error)).lower()}"
    return ""


def _loaded(program: str) -> Iterator[str]:
    """The program, and what of the environment around it says which packages are imported."""
    yield program
    for file in dict.fromkeys((os.path.abspath(program), os.path.realpath(program))):
        for pattern in ("pyvenv.cfg", "lib*/python3*/site-packages"):
            yield from map(str, Path(file).parent.parent.glob(pattern))


def _way_to(path: str) -> Iterator[str]:
    """Every folder, link and file that the kernel looks up on the way to a path, links of links, too. OSError where it leads nowhere."""
    left, here, links = [*reversed(os.path.join(os.getcwd(), path).split("/"))], "/", 0
    yield here
    while left:
        part = left.pop()
        if part == "..":
            here = os.path.dirname(here)
        elif part not in ("", "."):
            step = os.path.join(here, part)
            yield step
            if stat.S_ISLNK(os.lstat(step).st_mode):
                links += 1
                if links > MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = os.readlink(step)
                left += reversed(target.split("/"))
                here = "/" if target.startswith("/") else here
            else:
                here = step


class ScheduledProbes:
    """When the next probe is due. Belongs to the main loop's thread.

    `worker`: has a `ProbeStarter` run; `unix`, `steady`: the clocks, in seconds.
    """

    def __init__(
        self,
        worker: Worker,
        store: KeyValueStore,
        unix: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.worker, self._store = worker, store
        self._unix, self._steady = unix, steady
        self._idle_since: float | None = None

    def tick(self, wanted: ProbesConfig, *, is_idle: bool) -> None:
        """Order a probe, if one is due and nobody has trained here for long enough. `is_idle`: no job is here now."""
        now = self._steady()
        if not is_idle:
            self._idle_since = None
            return
        if self._idle_since is None:
            self._idle_since = now
        if wanted.every == "never" or self.worker.busy or not self._store.opened:
            return
        if now - self._idle_since >= wanted.idle and self._is_due(wanted.every):
            self._store.remember(MEMO, msgspec.json.encode(self._unix()))
            self.worker.order(wanted)

    def _is_due(self, every: float) -> bool:
        """The first one at once; after a clock was set back by less than `every`, the next waits up to twice as long."""
        try:
            last = msgspec.json.decode(self._store.memo(MEMO) or b"0", type=float)
        except msgspec.MsgspecError:
            last = 0.0
        return abs(self._unix() - last) >= every

    def on_result(self, result: Result) -> bool:
        """Log how a probe went. False where the result comes from another worker."""
        if result.worker == WORKER and result.error is not None:
            log.warning("%s", result.error)
        elif result.worker == WORKER and result.value:
            log.info("scheduled probe: %s", result.value)
        return result.worker == WORKER

    def show(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the state of the worker added."""
        return msgspec.structs.replace(snapshot, sources=(*snapshot.sources, self.worker.state()))
