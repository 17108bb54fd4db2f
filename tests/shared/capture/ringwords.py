"""What stands in a trace ring, for the tests of its writer: read by the layout that the writer's module gives."""

from dataclasses import dataclass
from pathlib import Path

from mldebug_training.tracing import ring

KINDS = ("", "call", "return", "line", "unwind", "yield", "resume", "step")


@dataclass(frozen=True)
class Event:
    """One record with its names."""

    thread: str
    kind: str
    function: str
    path: str
    module: str
    line: int
    depth: int
    ns: int
    chunk: int


class Words:
    """A whole ring. Every record in it is held to the layout."""

    def __init__(self, path: str | Path) -> None:
        data = self.data = Path(path).read_bytes()
        assert data[:8] == ring.MAGIC
        _, _, size, at, _, self.chunks, self.chunk_size, self.count = ring.LAYOUT.unpack_from(
            data, 8
        )
        assert size == len(data)
        self.engine, self.python, self.node, self.why, self.followed, self.command = (
            data[place : place + length].rstrip(b"\0").decode() for place, length in ring.TEXTS
        )
        self.state, self.mode = ring.STATE.unpack_from(data, 168)
        self.pid = ring.WHO.unpack_from(data, 56)[0]
        self.step = ring.STEP.unpack_from(data, 144)[0]
        self.first_steps: list[int] = []  # of each chunk
        self.names = self._names(at)
        self.events = [event for chunk in sorted(self._heads()) for event in self._events(*chunk)]

    def _names(self, at: int) -> list[tuple[int, int, str]]:
        names: list[tuple[int, int, str]] = []
        while at + 16 <= self.chunks:
            result, line, file, length = ring.NAME.unpack_from(self.data, at)
            if result != len(names) + 1:
                break
            names.append((file, line, self.data[at + 16 : at + 16 + length].decode()))
            at += (16 + length + 7) // 8 * 8
        return names

    def _heads(self) -> list[tuple[int, int, str]]:
        found = []
        for place in range(self.count):
            at = self.chunks + place * self.chunk_size
            sequence, _, _, step, *_, name = ring.CHUNK.unpack_from(self.data, at)
            if sequence:
                self.first_steps.append(step)
                found.append((sequence, at, name.rstrip(b"\0").decode()))
        return found

    def _events(self, sequence: int, at: int, thread: str) -> list[Event]:
        found = []
        for place in range((self.chunk_size - 64) // 24):
            ns, name, line, depth, kind, commit = ring.RECORD.unpack_from(
                self.data, at + 64 + place * 24
            )
            if commit == sequence:
                found.append(self._event(thread, ns, name, line, depth, kind, sequence))
        return found

    def _event(
        self, thread: str, ns: int, name: int, line: int, depth: int, kind: int, chunk: int
    ) -> Event:
        assert 0 < ns < 1 << 62
        assert 0 < kind < len(KINDS)
        if kind == ring.STEP_KIND:
            return Event(thread, "step", str(name | line << 32), "", "", 0, depth, ns, chunk)
        file, _, function = self.names[name]
        path, _, module = self.names[file][2].partition("\0")
        return Event(thread, KINDS[kind], function, path, module, line, depth, ns, chunk)

    def reported(self, thread: str = "MainThread", *kinds: str) -> list[str]:
        """`call f`, by depth, of one thread."""
        return [
            f"{' ' * one.depth}{one.kind} {one.function.rpartition('.')[2]}"
            for one in self.events
            if one.thread == thread and (not kinds or one.kind in kinds)
        ]
