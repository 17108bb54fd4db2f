"""Who held a rank's CUDA memory when it ran out, read after the rank has ended.

The hook wrote it beside its record before the error was raised (`mldebug_training.hook.on_request.memory_history`), where the job was
started with `mldebug run --memory-history`. A file is used only where it belongs to the user of the rank, and nobody else may write it.
"""

from collections.abc import Iterable

from mldebug.capture.memory.hook_file import MAX_BYTES, parse_failure
from mldebug.core.model import MemoryFailure, RankIdentity
from mldebug.jobs.heartbeat import OOM, record_name
from mldebug_agents.jobs.hook.records import FOLDER, check_owner
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import FilePiece


class MemoryFailures:
    """Reads what the hooks of ranks wrote when an allocation of GPU memory failed. Raises nothing."""

    def __init__(self, host: Host, reader: Reader) -> None:
        self._host = host
        self._reader = reader

    def left_behind(
        self, ranks: Iterable[RankIdentity], gaps: list[str]
    ) -> dict[int, MemoryFailure]:
        """The last failed allocation of each rank that left one. `gaps`: takes a sentence for each file that is not believed."""
        found = {}
        for rank in ranks:
            try:
                failure = self._of(rank)
            except ValueError as error:
                gaps.append(f"who held the CUDA memory of rank {rank.rank} is not known: its hook's file does not count: {error}")  # fmt: skip
                continue
            if failure is not None:
                found[rank.rank] = failure
        return found

    def _of(self, rank: RankIdentity) -> MemoryFailure | None:
        """What its file says; None where it left none. Raises ValueError with the reason where the file is not believed."""
        name = record_name(rank.namespace_pid or rank.pid, rank.start_ticks) + OOM
        rights = self._host.rights.of(rank)
        for root in self._host.rights.roots(rank):
            path = f"{root}{FOLDER}/{name}"
            piece = self._reader.read_from(path, 0, rights=rights, max_bytes=MAX_BYTES + 1)
            if isinstance(piece, FilePiece):
                check_owner(piece, rank.uid)
                return parse_failure(piece.data)
        return None
