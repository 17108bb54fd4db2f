"""Lines of source files that a ring names, read where its rank sees them, and only what its user may read."""

from collections.abc import Sequence

from mldebug.capture.trace.source_lines import is_source, nth_line
from mldebug.core.model import RankIdentity
from mldebug_agents.jobs.logs.rights import Rights
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import FilePiece

MAX_BYTES = 1 << 20  # of one file
MAX_FILES = 16  # of one rank


class SourceText:
    """For one rank at one moment."""

    def __init__(self, host: Host, reader: Reader, rank: RankIdentity) -> None:
        self._reader = reader
        self._rights = Rights(rank.uid, host.status(rank.pid).groups)
        self._roots = _roots(host, rank)
        self._files: dict[str, bytes] = {}

    def line(self, path: str, number: int) -> str:
        """The text of that line, "" where it cannot be had."""
        if not is_source(path):
            return ""
        if path not in self._files:
            full = len(self._files) >= MAX_FILES
            self._files[path] = b"" if full else self._read(path)
        return nth_line(self._files[path], number)

    def _read(self, path: str) -> bytes:
        for root in self._roots:
            piece = self._reader.read_from(f"{root}{path}", 0, max_bytes=MAX_BYTES)
            if isinstance(piece, FilePiece) and self._rights.may_read(piece):
                return piece.data
        return b""


def _roots(host: Host, rank: RankIdentity) -> Sequence[str]:
    """That of the rank; where it has ended that of its launcher, or ours."""
    stat = host.brief(rank.pid)
    if stat is not None and stat.start_ticks == rank.start_ticks and stat.state not in "ZX":
        return [host.root_of(rank.pid)]
    return [*([host.root_of(rank.launcher_pid)] if rank.launcher_pid else []), host.root]
