"""Ranks of one job that work on one GPU: where one of them runs out of memory, the others are who holds it."""

from mldebug.core.model import RankIdentity
from mldebug.diagnosis.exits.cuda_memory import DeviceMemory
from mldebug.diagnosis.exits.memory_text import shown_size
from mldebug.diagnosis.exits.model import AttemptExit, RankExit

APART = "give each rank a GPU of its own: torch.cuda.set_device(LOCAL_RANK) before anything uses a GPU, and map_location where checkpoints are loaded"


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
