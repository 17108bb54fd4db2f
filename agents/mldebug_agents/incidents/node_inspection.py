"""Inspects ranks of this node for a person elsewhere, in a child process of the agent.

A trace takes many times its size where it is added up, and ranks take minutes to make their steps: neither is for the agent itself.
"""

import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from mldebug.capture.inspection import InspectedRanks, InspectionOptions
from mldebug.config.schema import Config, effective_yaml
from mldebug.core.errors import MldebugError
from mldebug.core.model import Job
from mldebug_agents.system.child.link import MAX_BODY, ChildLink, WorkerStarter
from mldebug_agents.system.child.worker import ForkedWorker
from mldebug_agents.system.gone import GONE, LOOK, Gone, never

NAME = "inspection"
MARGIN = 30.0  # seconds for the child to begin, and to capture the job
ENDING = 10.0  # seconds in which it takes back what it has asked of ranks, when nobody waits for the answer any more, or the agent ends


class InspectionTask(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is to do: inspect `ranks` (folded) of the job that the process `pid` is a rank of.

    `config`: the agent's configuration, as YAML; `most`: bytes of files that may be sent.
    """

    config: str
    pid: int
    ranks: str
    options: InspectionOptions
    most: int


class InspectionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it, with a capture of the job (`mldebug.cluster.wire`, packed); or in `error` why nothing did, as a sentence."""

    found: InspectedRanks | None = None
    reply: bytes = b""
    error: str = ""


class NodeInspector(Protocol):
    """Inspects ranks of a job on this node."""

    def __call__(
        self, job: Job, ranks: str, options: InspectionOptions, most: int, gone: Gone = never
    ) -> InspectionOutcome:
        """Inspect these ranks (folded). Raises MldebugError where the job is gone, nothing comes in time, or nobody waits for it any
        more (`gone`): then it is ended.
        """
        ...


def in_child(spawner: WorkerStarter, config: Callable[[], Config]) -> NodeInspector:
    """What inspects ranks of this node, in a child that reads the node with this configuration."""

    def inspect(
        job: Job, ranks: str, options: InspectionOptions, most: int, gone: Gone = never
    ) -> InspectionOutcome:
        pid = next((one.pid for one in job.ranks), 0)
        if not pid:
            raise MldebugError("it has no rank here any more")
        task = InspectionTask(
            config=effective_yaml(config()), pid=pid, ranks=ranks, options=options, most=most
        )
        decoder = msgspec.msgpack.Decoder(InspectionOutcome)
        try:
            worker = spawner.fork_worker(NAME, leave=ENDING)
            link = ChildLink(worker.socket, decoder, max_body=MAX_BODY + most)
            try:
                link.send(task)
                return _answer(worker, link, options.deadline + MARGIN, gone)
            finally:
                worker.kill()
        except OSError as error:
            raise MldebugError(f"its inspection came to nothing: {error}") from error

    return inspect


def _answer(
    worker: ForkedWorker, link: ChildLink[InspectionOutcome], timeout: float, gone: Gone
) -> InspectionOutcome:
    """What the child answers. Raises MldebugError as soon as nobody waits for it, and has the child take back what it has asked of ranks."""
    until = time.monotonic() + timeout
    worker.socket.settimeout(LOOK)
    while True:
        try:
            return link.receive()
        except TimeoutError:
            if gone():
                _ended(worker)
                raise MldebugError(GONE) from None
            if time.monotonic() > until:
                raise


def _ended(worker: ForkedWorker) -> None:
    """Hang up on the child, and wait for its end."""
    until = time.monotonic() + ENDING + LOOK
    worker.hang_up()
    while not worker.gone() and time.monotonic() < until:
        time.sleep(0.05)
