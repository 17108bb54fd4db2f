"""Whether a rank of which one Python stack is all that is known may wait in a line of its own for its GPU, or for other ranks.

`loss.item()`, `x.cpu()`, `x.tolist()`, `x.nonzero()`, a copy to the host, `event.synchronize()` and `work.wait()` are calls of C code: the stack
ends in the line that calls them, as it does for a sleep or a read. They return when the kernels before them have ended, collectives included,
so the rank may wait for just those who wait for it. CUDA spins there or blocks, as the process has chosen: that no CPU is used tells nothing.
"""

from collections.abc import Iterable

from mldebug.capture.frames import (
    bare,
    inner,
    is_user,
    owner_of,
    principal,
    python_frames,
    site,
)
from mldebug.capture.packages import Owner
from mldebug.core.model import ClassifiedRank, Frame
from mldebug.diagnosis.classify.tables.host_work import HOST_FILES, works_on_host
from mldebug.diagnosis.classify.tables.matching import match_calls

PERHAPS_ITS_GPU = "no call shows below that line, and one that takes a value off its GPU (.item(), .cpu(), work.wait()) looks the same"
LOOSE = ("idle", "native_code")
"""Classes of ranks of which no frame and no kernel says what they wait for."""


def may_wait_for_gpu(
    rank: ClassifiedRank, waiting: Iterable[ClassifiedRank], *, starting: bool
) -> bool:
    """Whether nothing shows that the line in which this rank stands is work on the host.

    Its name may show it (`read_shard`), or the library that it is in; but not where other ranks wait in the same function, which then is of
    the training's step. `waiting`: the ranks that wait. `starting`: process groups are being made, so that no collective is before its line.
    """
    frame = _innermost(rank)
    if rank.is_.name not in LOOSE or frame is None or starting:
        return False
    if match_calls(inner(_frames(rank), site(_frames(rank)))):
        return False  # the call has a name, a compiler's or a checkpoint's
    if not is_user(frame):
        return frame.file.startswith("torch/") and not HOST_FILES.fullmatch(frame.file)
    step = {(one.file, bare(one)) for other in waiting for one in _frames(other)}
    if owner_of(frame) is Owner.JOB and (frame.file, bare(frame)) in step:
        return True
    return not works_on_host(frame.function, frame.file)


def _innermost(rank: ClassifiedRank) -> Frame | None:
    """The frame in which it stands; None where anything but one look at Python's frames is known of it."""
    process = rank.capture.process if rank.capture else None
    if process is None or process.state is not None or process.movement is not None:
        return None
    if rank.is_.direct or process.source_line or process.native:
        return None
    frames = _frames(rank)
    return frames[0] if frames else None


def _frames(rank: ClassifiedRank) -> tuple[Frame, ...]:
    process = rank.capture.process if rank.capture else None
    stack = principal(process.stacks, process.pid) if process else None
    return python_frames(stack.frames) if stack else ()
