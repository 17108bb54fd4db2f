"""Who holds the memory of a GPU: by line of the job, and by phase. Sizes are bytes."""

from mldebug.core.model.base import MeasuredData


class HeldLine(MeasuredData, frozen=True, kw_only=True):
    """The GPU memory that is held by allocations of one line of the job's code, or of what that line called."""

    place: str  # "build (model.py:18)"; "" where PyTorch knows no Python line
    phase: str  # "optimizer"
    memory_bytes: int
    blocks: int = 0


class MemoryHolders(MeasuredData, frozen=True, kw_only=True):
    """Who holds what PyTorch's allocator has of one GPU.

    `reserved`: all that it has of the GPU; `allocated`: blocks in use; `requested`: what was asked for, before rounding up; the rest lies
    unused in `pieces`, the largest of which has `largest_free`; `private`: pools of CUDA graphs or of the job.
    """

    device: int = 0  # as the process counts
    reserved: int = 0
    allocated: int = 0
    requested: int = 0
    pieces: int = 0
    largest_free: int = 0
    private: int = 0
    lines: tuple[HeldLine, ...] = ()  # the largest first, not all
    phases: dict[str, int] = {}  # the largest first
    elsewhere: int = 0  # of lines that are not in `lines`

    @property
    def unused(self) -> int:
        """Bytes that PyTorch holds and no tensor uses."""
        return max(0, self.reserved - self.allocated)


class MemoryFailure(MeasuredData, frozen=True, kw_only=True):
    """An allocation of GPU memory that failed, as the hook wrote it down before the error was raised."""

    at: float  # unix
    requested: int
    capacity: int
    free: int  # of the device, outside PyTorch
    asked_at: str = ""  # the line that asked: "forward (model.py:61)"
    step: int | None = None
    phase: str = ""  # the hook's
    retries: int = 0  # how often PyTorch had to give its cache back before
    holders: MemoryHolders = MemoryHolders()

    @property
    def missing(self) -> int:
        """Bytes that were missing, also if all that lies unused were in one piece; 0: it lay in pieces."""
        return max(0, self.requested - self.free - self.holders.unused)
