"""Inspects ranks of this node for a person elsewhere, in a child process of the agent.

A trace takes many times its size where it is added up, and ranks take minutes to make their steps: neither is for the agent itself.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from mldebug.capture.inspection import InspectedRanks, InspectionOptions
from mldebug.config.schema import Config, effective_yaml
from mldebug.core.errors import MldebugError
from mldebug.core.model import Job
from mldebug_agents.system.child.link import MAX_BODY, WorkerStarter, ask_once

NAME = "inspection"
MARGIN = 30.0  # seconds for the child to begin, and to capture the job


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
        self, job: Job, ranks: str, options: InspectionOptions, most: int
    ) -> InspectionOutcome:
        """Inspect these ranks (folded). Raises MldebugError where the job is gone, or nothing comes in time."""
        ...


def in_child(spawner: WorkerStarter, config: Callable[[], Config]) -> NodeInspector:
    """What inspects ranks of this node, in a child that reads the node with this configuration."""

    def inspect(job: Job, ranks: str, options: InspectionOptions, most: int) -> InspectionOutcome:
        pid = next((one.pid for one in job.ranks), 0)
        if not pid:
            raise MldebugError("it has no rank here any more")
        task = InspectionTask(
            config=effective_yaml(config()), pid=pid, ranks=ranks, options=options, most=most
        )
        decoder = msgspec.msgpack.Decoder(InspectionOutcome)
        try:
            worker = spawner.fork_worker(NAME)
            timeout = options.deadline + MARGIN
            return ask_once(worker, task, decoder, timeout, max_body=MAX_BODY + most)
        except OSError as error:
            raise MldebugError(f"its inspection came to nothing: {error}") from error

    return inspect
