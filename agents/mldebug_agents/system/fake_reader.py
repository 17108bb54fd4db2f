"""A reader without a child process, for tests: the files are a dict, and nothing ever blocks."""

import errno
from collections.abc import Mapping, Sequence

from mldebug_agents.system.child.reader_child import (
    HEAD,
    ReadAnswer,
    ReadOperation,
    ReadRequest,
    pick_lines,
)
from mldebug_agents.system.child.refusals import Refusal, Refused
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable, judge


class FakeReader(Reader):
    """A `Reader` for tests. Its files are a dict: path -> content, or the `Unreadable` to answer with."""

    def __init__(self, files: Mapping[str, bytes | Unreadable]) -> None:
        self.files = dict(files)

    def close(self) -> None:
        """Does nothing, since there is no child."""

    @property
    def stuck(self) -> tuple[str, ...]:
        """The paths that answer as stuck."""
        return tuple(
            path for path, it in self.files.items() if isinstance(it, Unreadable) and it.stuck
        )

    def _ask(
        self, wanted: ReadRequest, paths: Sequence[str], *, timeout: float
    ) -> dict[str, ReadAnswer | Unreadable]:
        how = wanted.operation, wanted.limit, wanted.line
        return {path: self._answer(path, *how) for path in paths}

    def _answer(
        self, path: str, operation: ReadOperation, limit: int, line: int
    ) -> ReadAnswer | Unreadable:
        data = self.files.get(path)
        if operation is ReadOperation.LINK and not isinstance(data, Unreadable):
            return ReadAnswer()
        if data is None:
            return judge(ReadAnswer(status=errno.ENOENT))
        if isinstance(data, Unreadable):
            return data
        try:
            piece = _piece(operation, data, limit, line)
            return ReadAnswer(piece, len(data), file_id=(1, 1, 0o100644, 0, 0))
        except Refused as refused:
            return judge(ReadAnswer(size=len(data), status=refused.refusal))


def _piece(operation: ReadOperation, data: bytes, limit: int, line: int) -> bytes:
    if operation is ReadOperation.FILE and len(data) > limit:
        raise Refused(Refusal.TOO_LARGE)
    if operation is ReadOperation.LINES:
        return pick_lines(data, line)
    if operation is ReadOperation.FROM:
        return data[line : line + limit]
    if operation is ReadOperation.HEADS:
        places = range(line & 0xFFFFFFFF, len(data) - HEAD + 1, line >> 32)[: limit // HEAD]
        return b"".join(data[at : at + HEAD] for at in places)
    start = {ReadOperation.TAIL: max(0, len(data) - limit), ReadOperation.MEMORY: line}.get(
        operation, 0
    )
    return data[start : start + limit]
