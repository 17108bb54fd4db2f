"""What the recorded agent remembered when the recording began; what is learned since goes nowhere."""


class RecordedStore:
    """As `hardware.memory.Memory` has it."""

    opened = True

    def __init__(self, told: dict[str, bytes]) -> None:
        self._told = dict(told)

    def memo(self, name: str) -> bytes:
        """What is remembered under that name; empty where nothing is."""
        return self._told.get(name, b"")

    def remember(self, name: str, told: bytes) -> None:
        """Keep something as long as the replay lasts; nothing, where it is empty."""
        self._told[name] = told
        if not told:
            del self._told[name]

    def memos(self, beginning: str) -> tuple[str, ...]:
        """The names that begin so."""
        return tuple(name for name in self._told if name.startswith(beginning))
