"""What people ask of the agent's GPUs: to let go of them, to take them up again, to accept those that are there.

Any thread may ask; what belongs to the main loop is handed to it.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from mldebug.core.errors import MldebugError, UsageError
from mldebug.core.units import format_duration

LONGEST = 4 * 3600.0  # seconds that the GPUs may be left unwatched by one request
FOR_RESET = 300.0  # seconds for which the agent lets go by itself, and then looks again
HOLD = 600.0  # seconds after a take-up in which it does not: a job that starts has no context on a GPU yet
CLOSED_WITHIN = 3.0  # seconds in which an idle reader has ended
ACCEPTED_WITHIN = 5.0
BY_HAND = "somebody asked for it"
BY_ITSELF = "the driver asks for a reset and no process uses a GPU"
RELEASE, ACCEPT = "/api/v1/gpus/release", "/api/v1/gpus/accept"


@runtime_checkable
class ReleasableGpus(Protocol):
    """A source of GPU readings that holds them open: `sources.gpus.Gpus`."""

    @property
    def released_seconds(self) -> float:
        """For how long they are left alone."""
        ...

    def release(self, seconds: float) -> None:
        """Leave them alone for so long; 0: no longer."""
        ...

    def let_go(self) -> bool:
        """Is none of them held any more?"""
        ...


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a release. `closed`: nothing of the agent's holds a GPU now."""

    seconds: float
    closed: bool


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """What came of accepting: so many GPUs are expected from now on."""

    expected: int


class _AcceptRequest:
    """One request to the main loop."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.expected: int | None = None


class GpuController:
    """Takes requests. `gpus` may be a recording, which holds nothing."""

    def __init__(self, gpus: object, clock: Callable[[], float] = time.time) -> None:
        self._gpus = gpus if isinstance(gpus, ReleasableGpus) else None
        self._clock = clock
        self._wishes: queue.SimpleQueue[_AcceptRequest] = queue.SimpleQueue()
        self.why = ""  # the GPUs are released
        self._not_before = -math.inf

    @property
    def released_until(self) -> float | None:
        """Unix time; None where they are not released."""
        left = self._gpus.released_seconds if self._gpus else 0.0
        return self._clock() + left if 0 < left < math.inf else None

    def release(self, seconds: float, why: str = BY_HAND) -> Released:
        """Close all handles for so long and wait a little until they are closed; 0 takes the GPUs up again."""
        if not 0 <= seconds <= LONGEST:  # so NaN is none
            raise UsageError(
                "the GPUs cannot be released for so long",
                f"at most {format_duration(LONGEST)} at a time",
            )
        if self._gpus is None:
            return Released(seconds=seconds, closed=True)
        if seconds == 0:
            self.take_up()
            return Released(seconds=0.0, closed=False)
        self._let_go(seconds, why)
        deadline = time.monotonic() + CLOSED_WITHIN
        while not (closed := self._gpus.let_go()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return Released(seconds=seconds, closed=closed)

    def let_go_for_reset(self) -> bool:
        """Release the GPUs because the agent itself is in the way of a reset. Waits for nothing; False where they were taken up again lately."""
        if self._gpus is None or time.monotonic() < self._not_before:
            return False
        self._let_go(FOR_RESET, BY_ITSELF)
        return True

    def take_up(self) -> None:
        """Have the GPUs read again."""
        self._not_before = time.monotonic() + HOLD
        self._let_go(0.0, "")

    def _let_go(self, seconds: float, why: str) -> None:
        self.why = why
        if self._gpus is not None:
            self._gpus.release(seconds)

    def accept(self, timeout: float = ACCEPTED_WITHIN) -> Accepted:
        """What is there now is what there should be; MldebugError where that cannot be read now."""
        wish = _AcceptRequest()
        self._wishes.put(wish)
        if not wish.done.wait(timeout):
            raise MldebugError("the agent did not come to it: nothing may be accepted", "ask again")
        if wish.expected is None:
            raise MldebugError(
                "the agent cannot read the GPUs now: nothing was accepted",
                "`mldebug doctor --gpus` says why",
            )
        return Accepted(expected=wish.expected)

    def grant(self, accept: Callable[[], int | None]) -> Iterator[int]:
        """Carry out what was wished since the last turn; yields how many GPUs were accepted. The main loop's alone."""
        while True:
            try:
                wish = self._wishes.get_nowait()
            except queue.Empty:
                return
            wish.expected = accept()
            wish.done.set()
            if wish.expected is not None:
                yield wish.expected


def gpu_verbs(controller: GpuController) -> dict[str, Callable[[Mapping[str, str]], object]]:
    """Path -> what it does. `release?seconds=600`; 0 takes the GPUs up again."""
    return {
        RELEASE: lambda query: controller.release(_seconds(query)),
        ACCEPT: lambda _: controller.accept(),
    }


def _seconds(query: Mapping[str, str]) -> float:
    try:
        return float(query.get("seconds", ""))
    except ValueError:
        raise UsageError("seconds is no number", "ask for ?seconds=600") from None
