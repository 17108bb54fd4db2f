"""What every probe runs in: the lock, the guard, the Python of the training environment, one child process at a time.

with open_session(wanted) as session:
    ended = session.run("collectives", order, on_event=show)
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mldebug.core.errors import MldebugError, ToolError
from mldebug.core.progress import progress_line
from mldebug_agents.probes.child import ChildExit, Event, ProbeChild, inside
from mldebug_agents.probes.environment import (
    ProbeEnvironment,
    child_environment,
    find_python,
    keep_rights_here,
)
from mldebug_agents.probes.guard import LOCK, Guard, only_probe
from mldebug_agents.probes.tools import ProbeTools, open_probe_tools
from mldebug_agents.system.spawn import Spawner

FACTS_SECONDS = 120.0  # importing torch from a slow network filesystem
SPARE = 5.0  # seconds in which a launcher that has its own deadline may end by itself


class ProbeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The options that all commands of `mldebug probe` share. `python`: of the training environment, None to search for it. `lock`: a file that keeps a second probe off this node."""

    python: str | None = None
    device: str = "auto"  # auto, cuda, cpu
    duration: float = 600.0  # seconds for all
    beside_jobs: bool = False
    lock: Path = LOCK


class TorchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the Python of the training environment has: versions ("" for none), number of GPUs that PyTorch sees, backends."""

    python: str = ""
    torch: str = ""
    cuda: str = ""
    hip: str = ""
    gpus: int = 0
    nccl: str = ""
    gloo: bool = False


class Session:
    """Everything a probe runs with, made by `open_session`: `device` is "cuda" or "cpu", `tools` look at this node, `facts`
    describe its PyTorch.
    """

    def __init__(
        self, wanted: ProbeSettings, tools: ProbeTools, python: str, environment: ProbeEnvironment
    ) -> None:
        self.wanted, self.tools, self.python = wanted, tools, python
        self.environment = environment
        self.until = time.monotonic() + wanted.duration
        if (
            not wanted.beside_jobs
        ):  # before PyTorch is imported, which costs a job some seconds of a core
            Guard(tools.gpus, tools.finder, uses_gpus=False).refuse()
        self.facts = self._ask_facts()
        self.device = _device(wanted, self.facts)
        self._guard = Guard(tools.gpus, tools.finder, self.device == "cuda")
        if not wanted.beside_jobs:
            self._guard.refuse()

    @property
    def spawner(self) -> Spawner:
        """Starts child processes. May be used from any thread."""
        return self.tools.context.spawner

    @property
    def seconds_left(self) -> float:
        """Seconds left of the option `--duration`."""
        return max(0.0, self.until - time.monotonic())

    def run(
        self,
        script: str,
        order: Mapping[str, Any],
        on_event: Callable[[Event], None],
        seconds: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ChildExit:
        """Run a script of `probes/inside` to its end, or until a training job appears on this node.

        `script`: its name. `order`: what it has to do, JSON. `on_event`: called with each event that it writes. `seconds`: its limit; None:
        all that is left. `env`: variables to add. It does not raise for a script that fails: `ChildExit` says how it ended.
        """
        left = min(self.seconds_left, seconds or self.seconds_left)
        argv = inside(self.python, script, {**order, "seconds": left})
        return self.run_program(argv, on_event, left, env)

    def run_program(
        self,
        argv: list[str],
        on_event: Callable[[Event], None],
        seconds: float,
        env: Mapping[str, str] | None = None,
    ) -> ChildExit:
        """Run any program that prints events as the scripts do; otherwise as `run`. `on_event`: called with each event."""
        variables = {**self.environment.variables, **(env or {})}
        watch = (lambda _: "") if self.wanted.beside_jobs else self._guard.look
        child, limit = ProbeChild(self.spawner, watch), self.wanted.duration
        with progress_line("measuring") as line:
            return child.run(
                argv, variables, seconds + SPARE, line.before(on_event), shown_limit=limit
            )

    def _ask_facts(self) -> TorchFacts:
        found: list[Event] = []
        argv = inside(self.python, "facts", {})
        ended = ProbeChild(self.spawner).run(
            argv, self.environment.variables, FACTS_SECONDS, found.append
        )
        for event in found:
            if event["event"] == "facts":
                return msgspec.convert(event, TorchFacts)
        raise ToolError(
            f"PyTorch does not work in {self.python}: {ended.reason or 'it gives no reason'}",
            "name the training environment's: --python /path/to/env/bin/python",
        )


@contextlib.contextmanager
def open_session(wanted: ProbeSettings) -> Iterator[Session]:
    """A context that prepares a probe: finds the Python, takes the lock, checks that this node is idle. When it is left, no
    process remains.

    Raises MldebugError where another probe or a job is running, and ToolError where PyTorch does not work.
    """
    python, environment = find_python(wanted.python), child_environment(os.environ)
    keep_rights_here()  # before the process starter is forked, which hands on what it has
    with open_probe_tools(probes=True) as tools, only_probe(wanted.lock):
        yield Session(wanted, tools, python, environment)


def _device(wanted: ProbeSettings, facts: TorchFacts) -> str:
    if wanted.device == "cpu":
        return "cpu"
    if facts.gpus:
        return "cuda"
    if wanted.device == "cuda":
        raise ToolError(_no_gpu(facts), "measure the CPUs: --device cpu")
    return "cpu"


def _no_gpu(facts: TorchFacts) -> str:
    if not (facts.cuda or facts.hip):
        return f"PyTorch {facts.torch} is built without GPU support"
    return f"PyTorch {facts.torch} sees no GPU here"


def check_ranks(session: Session, ranks: int) -> None:
    """Raise MldebugError where this node has fewer GPUs than `ranks`, and ToolError where PyTorch lacks NCCL (or gloo for CPUs)."""
    if session.device == "cuda" and ranks > session.facts.gpus:
        gpus = f"{session.facts.gpus} GPU{'s' if session.facts.gpus > 1 else ''}"
        raise MldebugError(
            f"{ranks} ranks were wanted, and PyTorch sees {gpus} here", "fewer --nproc"
        )
    if session.device == "cuda" and not session.facts.nccl:
        raise ToolError(f"PyTorch {session.facts.torch} has no NCCL", "--device cpu")
    if session.device == "cpu" and not session.facts.gloo:
        raise ToolError(f"PyTorch {session.facts.torch} has no gloo", "another --python")
