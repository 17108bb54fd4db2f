"""Has PyTorch remember which line made each block of CUDA memory that is in use, and writes that down when memory runs out.

Armed by `mldebug run --memory-history` (`MLDEBUG_MEMORY_HISTORY`). PyTorch keeps one Python stack for each living block, and no
history of what was freed, so it takes as much memory as there are blocks. Before an allocation fails for good, PyTorch calls
`MemoryHistory.failed`, which writes `RECORD.oom` beside the hook's record; that file stays when the process has ended, since the agent
reads it then. A job may catch the error and try again: so writing never takes more than a twentieth of the time.

The file is JSON, at most 256 KiB, made whole under another name:

    {"layout": 1, "rank": 2, "at": UNIX, "step": 41, "phase": "", "device": 0, "requested": BYTES, "capacity": BYTES, "free": BYTES,
     "asked_by": [[file, line, function]], "stats": {NAME: NUMBER}, "snapshot": {…}}

`snapshot` is of `mldebug_training.hook.on_request.memory_snapshot`, `asked_by` the stack of the allocation that failed, the innermost
frame first (none in a thread of autograd), `capacity` what the device has (or what the job limits itself to).
"""

from __future__ import annotations

import sys
import time

from mldebug_training.common.interrupted import pass_on
from mldebug_training.common.shared_files import OOM
from mldebug_training.hook.on_request.memory_snapshot import (
    MAX_FRAMES,
    MAX_STACKS,
    SHORTEST,
    condensed,
)
from mldebug_training.hook.on_request.step_task import write_whole
from mldebug_training.hook.process import own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any

    from mldebug_training.hook.record import HookRecord

ROOM = 256 << 10  # bytes of a file
SHARE = 20  # times as long as it took to write, until it is written again
STATS = (
    *("num_alloc_retries", "num_ooms", "allocated_bytes.all.peak", "reserved_bytes.all.peak"),
    "inactive_split_bytes.all.current",
)


class MemoryHistory:
    """Remembers who holds CUDA memory in this process, and tells it when it runs out. Its methods never raise."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch: Any = torch
        self._next = 0.0  # monotonic: not written again before
        self.why = "CUDA is not used yet"  # it remembers nothing; "": it does

    def arm(self) -> None:
        """Begin as soon as the job uses CUDA: asking earlier would start it, in a process that may fork later."""
        try:
            self._torch.cuda._lazy_call(self._begin)
        except Exception as error:  # another PyTorch than those we know
            pass_on(error)

    def _begin(self) -> None:
        try:
            self._torch.cuda.memory._record_memory_history(
                enabled="state", context="state", stacks="python", max_entries=1
            )
            self._torch._C._cuda_attach_out_of_memory_observer(self.failed)
            self.why = ""
        except Exception as error:  # before 2.1, an allocator of the job's own
            pass_on(error)
            self.why = f"PyTorch cannot: {error}"[:200]

    def failed(self, device: int, requested: int, capacity: int, free: int) -> None:
        """Called by PyTorch when an allocation of `requested` bytes has failed: write who holds the memory of this device."""
        try:
            began = time.monotonic()
            if began < self._next or own.record is None:
                return
            request = {
                "device": int(device),
                "requested": int(requested),
                "capacity": int(capacity),
                "free": int(free),
                "asked_by": stack_of(sys._getframe(1)),
            }
            write_whole(own.record.path + OOM, self._content(own.record, **request))
            self._next = time.monotonic() + SHARE * (time.monotonic() - began)
        except Exception as error:  # a full /dev/shm, no memory of the host either
            pass_on(error)

    def look(self) -> bytes:
        """Who holds the memory of the current device now: the file's content, with nothing requested. Raises what PyTorch raises,
        and ValueError where it cannot be made small enough, or this process has no record.
        """
        if own.record is None:
            raise ValueError("the hook has no record here")
        cuda = self._torch.cuda
        device = int(cuda.current_device())
        free, capacity = cuda.mem_get_info(device)
        more = {"device": device, "requested": 0, "capacity": int(capacity), "free": int(free)}
        return self._content(own.record, **more, asked_by=[])

    def _content(self, record: HookRecord, **more: Any) -> bytes:
        """The file's content. Raises what PyTorch raises, and ValueError where it cannot be made small enough."""
        import json

        memory = self._torch.cuda.memory
        snapshot = memory._snapshot()
        head = {
            "layout": 1,
            "rank": record.rank,
            "at": time.time(),
            "step": record.step,
            "phase": record.phase.decode("utf-8", "replace"),
            "stats": self._stats(more.get("device")),
            **more,
        }
        stacks = MAX_STACKS
        while stacks:
            found = {**head, "snapshot": condensed(snapshot, stacks)}
            data = json.dumps(found, separators=(",", ":")).encode()
            if len(data) <= ROOM:
                return data
            stacks //= 2
        raise ValueError("more than there is room for")

    def _stats(self, device: int | None) -> dict[str, int]:
        try:
            known = self._torch.cuda.memory_stats(device)
        except Exception as error:
            pass_on(error)
            return {}
        return {name: int(known[name]) for name in STATS if name in known}


def stack_of(frame: FrameType | None) -> list[list[Any]]:
    """Where a thread is: `[[file, line, function]]`, the innermost frame first."""
    found: list[list[Any]] = []
    while frame is not None and len(found) < MAX_FRAMES:
        code = frame.f_code
        found.append([code.co_filename[-SHORTEST:], frame.f_lineno, code.co_name[-SHORTEST:]])
        frame = frame.f_back
    return found


_known: list[MemoryHistory] = []


def arm(torch: ModuleType) -> None:
    """Have this process remember who holds its CUDA memory, from the job's first use of CUDA on. A second call does nothing."""
    if not _known:
        _known.append(MemoryHistory(torch))
        _known[0].arm()


def history() -> MemoryHistory | None:
    """What this process remembers of its memory; None where it was not armed."""
    return _known[0] if _known else None
