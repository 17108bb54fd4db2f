"""Flight Recorders on demand: all ranks that have the hook are asked at once, and write what they
know beside their record.

Who may be asked, and how: `mldebug_agents.jobs.hook.signals`; what they write:
`mldebug_training.hook.flight_recorder`. A file is used only where it belongs to the user of the
rank, nobody else may write it, and it has the expected shape.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import msgspec

from mldebug.capture.flight_recorder.access import AccessKind
from mldebug.capture.flight_recorder.hook_file import MAX_BYTES, parse_file
from mldebug.core.model import FlightRecord, Gap, RankIdentity
from mldebug.jobs.heartbeat import FLIGHT
from mldebug_agents.jobs.hook.records import check_owner
from mldebug_agents.jobs.hook.signals import HookSignals, SignalTarget
from mldebug_agents.system.failure_counts import FailureCounts
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import FilePiece

PAUSE = 0.02  # seconds between two looks whether they have answered
MAX_RANKS = 256  # ranks of one node at once; each takes a descriptor
WHAT = "Flight Recorder"
_WHY = {
    "nccl": "TORCH_FR_BUFFER_SIZE is 0, or PyTorch is older than 2.5",
    "nccl2": "its recorder was never seen running",
    "gloo": "PyTorch records them since 2.13",
}


class HookFlightRecords(msgspec.Struct, frozen=True):
    """Flight Recorders by rank, and in `gaps` the reason for each rank that was asked and gave none.

    Ranks that cannot be asked are in neither.
    """

    flights: dict[int, FlightRecord] = {}
    gaps: tuple[Gap, ...] = ()


class HookFlightRecorder:
    """Has the ranks of jobs that were started with `mldebug run` write PyTorch's Flight Recorder to a file, by a signal, and
    reads the
    files. A rank that does not answer, or writes what is no such file, raises nothing.
    """

    def __init__(
        self, asking: HookSignals, reader: Reader, unanswered: FailureCounts | None = None
    ) -> None:
        self._asking = asking
        self._reader = reader
        self.unanswered = unanswered or FailureCounts()

    def ask(self, ranks: Sequence[RankIdentity], timeout: float) -> HookFlightRecords:
        """Signal all ranks at once to write their Flight Recorders, wait at most `timeout` seconds,
        and read what they wrote.

        A rank that does not answer in time, or whose file is refused, gives a gap. Only the first
        `MAX_RANKS` are asked.
        """
        with ExitStack() as stack:
            held = {
                rank.rank: stack.enter_context(self._asking.hold(rank.pid))
                for rank in ranks[:MAX_RANKS]
            }
            starts = {rank.rank: rank.start_ticks for rank in ranks}
            processes = {
                rank: one for rank, one in held.items() if one and self._sent(one, starts[rank])
            }
            answered = self._answered(processes, time.monotonic() + timeout)
            answers = {
                rank: self._read(one) if rank in answered else f"no answer in {timeout:g} s"
                for rank, one in processes.items()
            }
            gaps = [
                Gap(what=WHAT, reason=why, rank=rank, pid=processes[rank].pid)
                for rank, why in answers.items()
                if isinstance(why, str)
            ]
        self.unanswered.count(AccessKind.HOOK, len(gaps))
        flights = {n: one for n, one in answers.items() if not isinstance(one, str)}
        return HookFlightRecords(flights, (*gaps, *_silent(flights)))

    def _sent(self, process: SignalTarget, start_ticks: int) -> bool:
        """Send the request; False where the process cannot be asked, or its pid is another process by now."""
        number = process.beat.flight_signal
        if number is None or start_ticks not in (0, process.identity.start_ticks):
            return False
        try:
            return self._asking.ask(process, number)
        except OSError:  # no right to signal it, or it is gone
            return False

    def _answered(self, processes: dict[int, SignalTarget], deadline: float) -> set[int]:
        """The ranks that have done what they could, when all have or the time is over."""
        answered: set[int] = set()
        while len(answered) < len(processes) and time.monotonic() < deadline:
            time.sleep(PAUSE)
            for rank, one in processes.items():
                if rank not in answered:
                    beat = self._asking.beat(one)
                    if beat is not None and beat.flight_answers != one.beat.flight_answers:
                        answered.add(rank)
        return answered

    def _read(self, process: SignalTarget) -> FlightRecord | str:
        """Its answer, or why there is none."""
        path, rights = self._asking.path(process, FLIGHT), self._asking.rights(process)
        piece = self._reader.read_from(path, 0, rights=rights, max_bytes=MAX_BYTES + 1)
        if not isinstance(piece, FilePiece):
            return f"its process could not write it ({piece.reason})"
        try:
            check_owner(piece, process.identity.uid)
            return parse_file(piece.data)
        except ValueError as error:
            return f"its answer is not believed: {error}"


def _silent(flights: Mapping[int, FlightRecord]) -> Iterator[Gap]:
    """A gap for each recorder that holds none of the calls that were made."""
    for rank, one in flights.items():
        for backend in one.silent:
            why = f"that of {backend} holds none of its calls: {_WHY.get(backend, 'it is switched off, or not known')}"
            yield Gap(what=WHAT, reason=why, rank=rank)
