"""Short ways to write captures in tests: one line per rank, frames innermost first."""

import re

from mldebug.core.model import (
    Frame,
    Job,
    Movement,
    NodeCapture,
    OpenFile,
    ProcessCapture,
    ProcessState,
    RankCapture,
    RankIdentity,
    ThreadStack,
    ThreadState,
)

_FRAME = re.compile(r"^(.+?) \((.+?)(?::(\d+))?\)$")

ALL_REDUCE = "all_reduce (torch/distributed/distributed_c10d.py:3252)"
WRAPPER = "wrapper (torch/distributed/c10d_logger.py:83)"
WAITER = (ALL_REDUCE, WRAPPER, "sync (train.py:30)", "<module> (train.py:50)")


def frame(text: str) -> Frame:
    """`name (file:12)` is Python, `name (lib.so)` is native."""
    match = _FRAME.match(text)
    assert match, text
    return Frame(function=match[1], file=match[2], line=int(match[3] or 0), native=match[3] is None)


def stack(
    *frames: str, tid: int = 100, name: str = "MainThread", active=False, gil=False
) -> ThreadStack:
    """One thread's stack."""
    return ThreadStack(
        tid=tid, name=name, active=active, owns_gil=gil, frames=tuple(map(frame, frames))
    )


def process(
    *frames: str,
    pid: int = 100,
    state: str = "S",
    wchan: str = "futex_do_wait",
    syscall: str = "",
    args: tuple[int, ...] = (),
    native: tuple[str, ...] = (),
    move: Movement | None = None,
    active: bool = False,
    gil: bool = False,
    source: str = "",
    on: OpenFile | None = None,
    files: tuple[OpenFile, ...] = (),
    kind: str = "rank",
    others: tuple[ThreadStack, ...] = (),
) -> ProcessCapture:
    """One process; `state=""` means that /proc was not read (old evidence)."""
    thread = ThreadState(tid=pid, state=state, wchan=wchan, syscall=syscall, syscall_args=args)
    return ProcessCapture(
        pid=pid,
        kind=kind,
        state=ProcessState(pid=pid, state=state, threads=(thread,), files=files) if state else None,
        stacks=(stack(*frames, tid=pid, active=active, gil=gil), *others) if frames else (),
        native=(stack(*native, tid=pid),) if native else (),
        movement=move,
        source_line=source,
        blocked_on=on,
    )


def still(samples: int = 8, span: float = 2.0, cpu: float = 0.0, switches: int = 0) -> Movement:
    """Watched, and nothing moved."""
    return Movement(
        samples=samples,
        span_seconds=span,
        same_frames=True,
        same_function=True,
        cpu_ratio=cpu,
        process_cpu_ratio=cpu,
        switches=switches,
    )


def moving(cpu: float = 0.5, switches: int = 50) -> Movement:
    """Watched, and the frames changed."""
    return Movement(
        samples=8,
        span_seconds=2.0,
        same_frames=False,
        cpu_ratio=cpu,
        process_cpu_ratio=cpu,
        switches=switches,
    )


def rank(
    number: int, what: ProcessCapture, *children: ProcessCapture, world: int = 4
) -> RankCapture:
    """A rank with pid 100 + number."""
    identity = RankIdentity(
        rank=number, world_size=world, pid=100 + number, local_rank=number, node="n1"
    )
    return RankCapture(identity=identity, process=what, children=children)


def capture(*ranks: RankCapture, world: int | None = None, **job) -> NodeCapture:
    """A node's capture of one job."""
    world = world if world is not None else len(ranks) + len(job.get("lost", ()))
    about = Job(
        id="j1", name="train.py", launcher="torchrun", world_size=world, nodes=("n1",), **job
    )
    return NodeCapture(node="n1", taken_at=1_700_000_000.0, job=about, ranks=ranks)
