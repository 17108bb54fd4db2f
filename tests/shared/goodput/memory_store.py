"""A store of the agent that keeps its values in memory."""

from dataclasses import dataclass, field


@dataclass
class MemoryStore:
    """Keeps values by name; `opened` as of an agent that has read them."""

    opened: bool = True
    values: dict[str, bytes] = field(default_factory=dict)

    def memo(self, name: str) -> bytes:
        return self.values.get(name, b"")

    def remember(self, name: str, data: bytes) -> None:
        self.values[name] = data
        if not data:
            del self.values[name]

    def memos(self, beginning: str) -> tuple[str, ...]:
        return tuple(name for name in self.values if name.startswith(beginning))
