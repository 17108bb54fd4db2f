"""What users may order about the agent's GPUs: release them, read them again, or accept the present ones as the full set.

Any thread may call; what belongs to the main loop is handed to it.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from mldebug.core.errors import MldebugError, UsageError
from mldebug.core.units import duration_words

LONGEST = 4 * 3600.0  # seconds that the GPUs may be left unwatched by one request
FOR_RESET = 300.0  # seconds for which the agent lets go by itself, and then looks again
# seconds after `take_up` in which the agent does not let go by itself: a job that is just starting has no context on a GPU yet,
# so the GPU looks unused
HOLD = 600.0
CLOSED_WITHIN = 3.0  # seconds in which an idle reader has ended
ACCEPTED_WITHIN = 5.0
BY_HAND = "somebody asked for it"
BY_ITSELF = "the driver asks for a reset and no process uses a GPU"
RELEASE, ACCEPT = "/api/v1/gpus/release", "/api/v1/gpus/accept"


@runtime_checkable
class ReleasableGpus(Protocol):
    """A source of GPU readings that keeps GPUs open and can close them: `NodeReader`."""

    @property
    def released_seconds(self) -> float:
        """Seconds for which the GPUs are still not touched; 0.0 where they are read as usual."""
        ...

    def release(self, seconds: float) -> None:
        """Close all handles on GPUs for `seconds`; 0 opens them again."""
        ...

    def let_go(self) -> bool:
        """Whether this agent holds no GPU open any more."""
        ...


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a release. `closed`: whether the agent holds no GPU by now. `seconds`: for how long."""

    seconds: float
    closed: bool


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to accepting the GPUs that are there: how many are expected from now on."""

    expected: int


class _AcceptRequest:
    """One request to the main loop."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.expected: int | None = None


class GpuController:
    """Carries out what users order about the agent's GPUs. `gpus`: the source of readings. A source without `release`, such as
    a recording, holds nothing open; to release it does nothing.
    """

    def __init__(self, gpus: object, clock: Callable[[], float] = time.time) -> None:
        self._gpus = gpus if isinstance(gpus, ReleasableGpus) else None
        self._clock = clock
        self._requests: queue.SimpleQueue[_AcceptRequest] = queue.SimpleQueue()
        self.why = ""  # the GPUs are released
        self._not_before = -math.inf

    @property
    def released_until(self) -> float | None:
        """Until when the GPUs are released, in unix seconds; None where they are not."""
        left = self._gpus.released_seconds if self._gpus else 0.0
        return self._clock() + left if 0 < left < math.inf else None

    def release(self, seconds: float, why: str = BY_HAND) -> Released:
        """Close all GPU handles for `seconds`, and wait up to `CLOSED_WITHIN` seconds until they are closed; 0 has the GPUs
        read again. `why` is shown in the status. Raises UsageError for more than `LONGEST` seconds.
        """
        if not 0 <= seconds <= LONGEST:  # so NaN is none
            raise UsageError(
                "the GPUs cannot be released for so long",
                f"at most {duration_words(LONGEST)} at a time",
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
        """Release the GPUs for `FOR_RESET` seconds because the driver wants to reset one and this agent holds it open.
        Returns at once; False where they cannot be released, or `take_up` was called less than `HOLD` seconds ago.
        """
        if self._gpus is None or time.monotonic() < self._not_before:
            return False
        self._let_go(FOR_RESET, BY_ITSELF)
        return True

    def take_up(self) -> None:
        """Have the GPUs read again, and keep the agent from releasing them by itself for `HOLD` seconds."""
        self._not_before = time.monotonic() + HOLD
        self._let_go(0.0, "")

    def _let_go(self, seconds: float, why: str) -> None:
        self.why = why
        if self._gpus is not None:
            self._gpus.release(seconds)

    def accept(self, timeout: float = ACCEPTED_WITHIN) -> Accepted:
        """Take the GPUs that are present now as all that this node should have. Waits up to `timeout` seconds for the main
        loop.

        Raises MldebugError where the main loop was too slow, or the GPUs cannot be read now.
        """
        request = _AcceptRequest()
        self._requests.put(request)
        if not request.done.wait(timeout):
            raise MldebugError(
                "the agent was too busy to answer, and perhaps nothing was accepted", "ask again"
            )
        if request.expected is None:
            raise MldebugError(
                "the agent cannot read the GPUs now: nothing was accepted",
                "`mldebug doctor --gpus` says why",
            )
        return Accepted(expected=request.expected)

    def grant(self, accept: Callable[[], int | None]) -> Iterator[int]:
        """Carry out waiting calls of `accept`, and yield the number of GPUs for each that succeeded. For the main loop
        only.

        `accept`: takes the present GPUs as expected and returns their number, None where they cannot be read.
        """
        while True:
            try:
                request = self._requests.get_nowait()
            except queue.Empty:
                return
            request.expected = accept()
            request.done.set()
            if request.expected is not None:
                yield request.expected


def gpu_verbs(controller: GpuController) -> dict[str, Callable[[Mapping[str, str]], object]]:
    """By path of the agent's API, the functions that answer requests about GPUs: `release?seconds=600` and `accept`."""
    return {
        RELEASE: lambda query: controller.release(_seconds(query)),
        ACCEPT: lambda _: controller.accept(),
    }


def _seconds(query: Mapping[str, str]) -> float:
    try:
        return float(query.get("seconds", ""))
    except ValueError:
        raise UsageError("seconds is no number", "ask for ?seconds=600") from None
