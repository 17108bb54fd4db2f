"""A lack of device memory in words: the sentence that a report shows, other ranks of the job on that GPU, and what to do next. Pure."""

from mldebug.core.model import RankIdentity
from mldebug.diagnosis.exits.cuda_memory import UNITS, DeviceMemory, MemoryCause
from mldebug.diagnosis.exits.model import AttemptExit, RankExit

APART = "give each rank a GPU of its own: torch.cuda.set_device(LOCAL_RANK) before anything uses a GPU, and map_location where checkpoints are loaded"


def memory_sentence(memory: DeviceMemory) -> str:
    """A lack of device memory in words: `CUDA out of memory on GPU 0: 2.00 GiB asked, 1.06 GiB of 79.15 GiB free; …`,
    without a full stop at the end.
    """
    if memory.likely:
        return f"{memory.by} could not allocate its workspace: the GPU's memory is most likely full"
    where = f" on GPU {memory.device}" if memory.device is not None else ""
    parts = [part for part in (_figures(memory), _why(memory)) if part]
    return f"{memory.kind} out of memory{where}" + (": " + "; ".join(parts) if parts else "")


def _figures(memory: DeviceMemory) -> str:
    requested = f"{shown_size(memory.requested)} asked" if memory.requested is not None else ""
    of = f" of {shown_size(memory.capacity)}" if memory.capacity is not None else ""
    free = f"{shown_size(memory.free)}{of} free" if memory.free is not None else ""
    return ", ".join(part for part in (requested, free) if part)


def _why(memory: DeviceMemory) -> str:
    tensors = f"torch holds {shown_size(memory.allocated)} in tensors" if memory.allocated else ""
    beside = f"{tensors}, and " if tensors else ""
    match memory.cause:
        case MemoryCause.LIMIT:
            return f"the job limits itself to {shown_size(memory.limit)}"
        case MemoryCause.OTHERS:
            if not memory.others:
                return f"{beside}{shown_size(memory.elsewhere)} are held outside torch, mostly by other processes"
            who = ", ".join(str(one.pid) for one in memory.others[:4])
            many = "processes hold" if len(memory.others) > 1 else "another process holds"
            return f"{many} {shown_size(memory.others_bytes)} (pid {who})"
        case MemoryCause.FRAGMENTED:
            more = "more " if tensors else ""
            return f"{beside}{shown_size(memory.unallocated)} {more}lie unused in pieces: fragmentation"
        case MemoryCause.DEMAND:
            why = "no fragmentation, the job needs more than there is"
            return f"{tensors}: {why}" if tensors else why
        case MemoryCause.TRANSIENT:
            return "enough is free: another process, or another thread, held it at that moment"
        case MemoryCause.UNKNOWN:
            by = f"{memory.by} asked for it, " if memory.by else ""
            return "" if memory.inside else f"{by}outside torch's own allocator"


def memory_steps(memory: DeviceMemory) -> tuple[str, ...]:
    """What to do about a GPU that ran out of memory, as sentences, the most promising first."""
    smaller = "lower the micro batch or the sequence length, or turn on activation checkpointing"
    return {
        MemoryCause.LIMIT: (
            "raise torch.cuda.set_per_process_memory_fraction, or lower the batch",
        ),
        MemoryCause.OTHERS: _who_else(memory),
        MemoryCause.FRAGMENTED: (_expandable(memory), smaller),
        MemoryCause.DEMAND: (smaller,),
        MemoryCause.TRANSIENT: _who_else(memory),
        MemoryCause.UNKNOWN: (*_who_else(memory), smaller),
    }[memory.cause]


def _who_else(memory: DeviceMemory) -> tuple[str, ...]:
    look = (
        "rocm-smi --showpids  # who else holds memory"
        if memory.kind == "HIP"
        else "nvidia-smi --query-compute-apps=pid,used_memory,process_name --format=csv  # who else holds memory"
    )
    pids = ",".join(str(one.pid) for one in memory.others[:8])
    return (f"ps -o pid,user,lstart,args -p {pids}", look) if pids else (look,)


def _expandable(memory: DeviceMemory) -> str:
    default = "PYTORCH_HIP_ALLOC_CONF" if memory.kind == "HIP" else "PYTORCH_CUDA_ALLOC_CONF"
    name = memory.setting or default
    return f"export {name}=expandable_segments:True  # for the job; torch 2.1 or newer, else max_split_size_mb:256"


def shown_size(size: int | None) -> str:
    """A size in the form of PyTorch's messages: `2.00 GiB`; "?" where it is not known."""
    if size is None:
        return "?"
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= UNITS[unit]:
            return f"{size / UNITS[unit]:.2f} {unit}"
    return f"{size} bytes"


def sharing_ranks(
    one: RankExit, memory: DeviceMemory | None, attempt: AttemptExit | None
) -> tuple[tuple[RankIdentity, int], ...]:
    """The ranks of the same job and node whose processes the message lists as holders of this rank's GPU, each with the bytes that it
    holds; empty where it lists none of them.
    """
    if memory is None or attempt is None:
        return ()
    nodes = {rank.node for rank in attempt.identities if rank.rank == one.rank}
    ranks = {rank.pid: rank for rank in attempt.identities if rank.node in nodes and rank.rank != one.rank}  # fmt: skip
    return tuple((ranks[holder.pid], holder.memory_bytes) for holder in memory.others if holder.pid in ranks)  # fmt: skip


def sharing_fact(rank: RankIdentity, memory_bytes: int) -> str:
    """`rank 0 of this job works on the same GPU and holds 8.90 GiB of it (pid 656)`."""
    return f"rank {rank.rank} of this job works on the same GPU and holds {shown_size(memory_bytes)} of it (pid {rank.pid})"
