"""The text form of NCCL RAS (`VERBOSE STATUS`, NCCL 2.24 to 2.28.3), made for people: it lists only what is out of order.

So a healthy communicator has no hash here, and equal counts are left out: two answers in this form cannot show that a job moves.
"""

import re
from collections.abc import Callable, Iterator

import msgspec

from mldebug.capture.nccl_ras.communicators import MAX_LEVELS
from mldebug.core.model import NcclAbsent, NcclCommunicator, NcclLevel, NcclRank, NcclRas
from mldebug.core.ranksets import MAX_RANK
from mldebug.core.redact import clean

MAX_LINES = 400_000
MAX_LINE = 1000
MAX_TROUBLED = 4096
MAX_NAME = 64

_NUMBER = r"\d{1,18}"
_VERSION = re.compile(r"NCCL version (\S{1,60})")
_ROW = re.compile(
    rf"\s*({_NUMBER})\s+{_NUMBER}\s+{_NUMBER}\s+\S+\s+({_NUMBER})\s+{_NUMBER}\s+\S+\s+\S+\s*"
)
_TITLE = re.compile(rf"#({_NUMBER})-{_NUMBER} \(([0-9a-f]{{1,16}})\) (INCOMPLETE|ERROR|MISMATCH)")
_FUNCTION = re.compile(r"  Communicator ranks have different (\w{1,40}) operation counts")
_SOME = re.compile(
    rf"  ({_NUMBER}) ranks have (?:launched up to operation ({_NUMBER})|not launched any operations)"
)
_STATUSES = re.compile(rf"  {_NUMBER} ranks have status (\w{{1,20}})")
_RANK = re.compile(
    rf"  Rank ({_NUMBER})(?: has (?:launched up to operation ({_NUMBER})|(not launched) any operations|status (\w{{1,20}})))?"
    r" -- (.*)"
)
_PLACE = re.compile(rf"GPU ({_NUMBER})?.*managed by process ({_NUMBER}) on node (\S{{1,64}})")
_PROCESS = re.compile(rf"  Process ({_NUMBER}) on node (\S{{1,64}})")
_TIMEOUTS = re.compile(rf" Warning: encountered ({_NUMBER}) communication timeout")
_SECONDS = re.compile(r"Communicators\.\.\. \((\d{1,9}\.\d{1,6})s\)")
_STATES = {
    "INIT": "initializing",
    "RUNNING": "running",
    "FINALIZE": "finalized",
    "ABORT": "aborted",
}

GpuPlace = tuple[str, int | None, int | None]  # host, pid, gpu


class _Troubled(msgspec.Struct):
    """One communicator as it comes together."""

    key: str
    size: int
    places: dict[int, GpuPlace] = {}
    counts: dict[int, dict[str, int]] = {}
    states: dict[int, str] = {}
    absent: dict[int, NcclAbsent] = {}
    levels: list[NcclLevel] = []

    @property
    def garbage(self) -> bool:
        """Has it neither members nor ranks? NCCL 2.27 tells such of a process of which it has no data, with a wild number of ranks."""
        return self.size == 0 and not (self.places or self.absent)

    def value(self) -> NcclCommunicator:
        ranks = tuple(self._rank(number) for number in sorted({*self.counts, *self.states}))
        absent = tuple(self.absent[number] for number in sorted(self.absent))
        levels = sorted(self.levels, key=lambda one: (one.function, one.count))[:MAX_LEVELS]
        return NcclCommunicator(
            key=self.key,
            size=self.size,
            answered=max(0, self.size - len(absent)),
            ranks=ranks,
            absent=absent,
            absent_count=len(absent),
            levels=tuple(levels),
        )

    def _rank(self, number: int) -> NcclRank:
        host, pid, gpu = self.places[number]
        counts = self.counts.get(number, {})
        status = self.states.get(number, "")
        return NcclRank(rank=number, host=host, pid=pid, gpu=gpu, status=status, counts=counts)


class _Reader:
    """Parses the text line by line; `_part` reads the lines below the last heading."""

    def __init__(self) -> None:
        self.version = ""
        self.ended = False
        self.seconds, self.timeouts = 0.0, 0
        self.sizes: dict[str, int] = {}
        self.found: dict[str, _Troubled] = {}
        self.absent: list[NcclAbsent] = []
        self._part: Callable[[str], None] = self._summary
        self._one = _Troubled("", 0)
        self._function = self._state = ""
        self._count = 0
        self._dead = False

    def take(self, line: str) -> None:
        """Parse one line of the answer and add what it says to the result."""
        if match := _TITLE.fullmatch(line):
            self._begin(match)
        elif line in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            self._part, self._dead = self._processes, line == "DEAD"
        elif line == "Warnings":
            self.ended, self._part = True, self._nothing
        else:
            self._part(line)

    def _begin(self, match: re.Match[str]) -> None:
        group, key, trouble = match.groups()
        if key not in self.found and len(self.found) >= MAX_TROUBLED:
            raise ValueError(f"it tells more than {MAX_TROUBLED} communicators")
        self._one = self.found.setdefault(key, _Troubled(f"0x{key}", self.sizes.get(group, 0)))
        self._function = self._state = ""
        parts = {"INCOMPLETE": self._missing, "MISMATCH": self._mismatch}
        self._part = parts.get(trouble, self._nothing)

    def _summary(self, line: str) -> None:
        if match := _VERSION.match(line):
            self.version = match[1]
        elif match := _SECONDS.fullmatch(line):
            self.seconds = float(match[1])
        elif match := _TIMEOUTS.match(line):
            self.timeouts = int(match[1])
        elif match := _ROW.fullmatch(line):
            self.sizes[match[1]] = int(match[2])

    def _nothing(self, line: str) -> None:
        """Of no use to us."""

    def _processes(self, line: str) -> None:
        if match := _PROCESS.match(line):
            pid, host = int(match[1]), clean(match[2], MAX_NAME)
            self.absent.append(NcclAbsent(host=host, pid=pid, unresponsive=True, dead=self._dead))

    def _missing(self, line: str) -> None:
        if match := _RANK.fullmatch(line):
            self._note_absent(int(match[1]), match[5], unresponsive=True)

    def _note_absent(self, rank: int, words: str, *, unresponsive: bool) -> None:
        if rank > MAX_RANK:
            return
        host, pid, gpu = _place(words)
        self._one.absent[rank] = NcclAbsent(
            rank=rank, host=host, pid=pid, gpu=gpu, unresponsive=unresponsive
        )

    def _mismatch(self, line: str) -> None:
        if match := _FUNCTION.fullmatch(line):
            self._function, self._state = match[1], ""
        elif match := _STATUSES.fullmatch(line):
            self._state = match[1]
        elif match := _SOME.fullmatch(line):
            self._count = int(match[2] or 0)
            self._level(int(match[1]))
        elif match := _RANK.fullmatch(line):
            self._rank(match)

    def _level(self, ranks: int) -> None:
        if self._function:
            level = NcclLevel(function=self._function, count=self._count, ranks=ranks)
            self._one.levels.append(level)

    def _rank(self, match: re.Match[str]) -> None:
        rank, words = int(match[1]), match[5]
        if rank > MAX_RANK:
            return
        if match[2] or match[3]:  # a level of one rank
            self._count = int(match[2] or 0)
            self._level(1)
        if not self._function:
            self._note_state(rank, match[4] or self._state, words)
            return
        self._one.places[rank] = _place(words)
        self._one.counts.setdefault(rank, {})[self._function] = self._count

    def _note_state(self, rank: int, state: str, words: str) -> None:
        if state == "NOCOMM":
            self._note_absent(rank, words, unresponsive=False)
        elif state:
            self._one.places[rank] = _place(words)
            self._one.states[rank] = _STATES.get(state, clean(state.lower(), MAX_NAME))


def parse_text(text: str) -> NcclRas:
    """Parse the text form of an NCCL RAS answer. Raises ValueError with the reason, also where the end of the text is missing."""
    reader = _Reader()
    for line in _lines(text):
        reader.take(line)
    if not reader.version:
        raise ValueError("it is no answer of NCCL RAS: it names no version")
    if not reader.ended or not text.endswith("\n"):
        raise ValueError("its end is missing")
    return NcclRas(
        version=clean(reader.version, MAX_NAME),
        form="text",
        communicators=tuple(one.value() for one in reader.found.values() if not one.garbage),
        absent=tuple(reader.absent),
        seconds=reader.seconds,
        timeouts=reader.timeouts,
    )


def _lines(text: str) -> Iterator[str]:
    lines = text.split("\n")
    if len(lines) > MAX_LINES:
        raise ValueError(f"it has more than {MAX_LINES} lines")
    return (line[:MAX_LINE].removesuffix("\r") for line in lines)


def _place(words: str) -> GpuPlace:
    match = _PLACE.fullmatch(words)
    if match is None:
        return "", None, None
    return clean(match[3], MAX_NAME), int(match[2]), int(match[1]) if match[1] else None
