"""Records one node for a while into the files of a bundle. It only reads: it attaches to no process, and leaves none running."""

import contextlib
import os
import time
from collections.abc import Callable

import msgspec

from mldebug import __version__
from mldebug.config.schema import effective_yaml
from mldebug.core.model import Job
from mldebug.hardware.kernel_log.excluded_gpus import excluded_gpus
from mldebug_agents.agent.node_tools import NodeTools
from mldebug_agents.capture.stacks.pyspy import find_binary
from mldebug_agents.hardware.gpu.holders import Holders
from mldebug_agents.hardware.kernel_log import KernelLogSource, sees_kernel_pids
from mldebug_agents.support.bundle import facts, layout
from mldebug_agents.support.bundle.folder import BundleFolder
from mldebug_agents.support.bundle.kernel_log import HOURS, read_kernel_log
from mldebug_agents.support.bundle.layout import ClockPair, Manifest
from mldebug_agents.support.bundle.observer import AgentObserver, DirectObserver, Observations
from mldebug_agents.support.doctor.checks import CheckEnvironment, examine
from mldebug_agents.web.client import AgentAnswer, inquire

OWN_PACE = 1.0  # seconds between two watch reads of our own
SOONEST, LATEST = 0.1, 1.0  # seconds between two questions to an agent
PER_LOOK = 4  # questions between two looks of the agent: none of its reads is missed
WAY_OUT = "see its log; `py-spy dump --pid PID` says where it hangs"


class Recorder:
    """Records this node. `seconds`: for how long, 0 to read everything once; `enough`: returns True to end it sooner."""

    def __init__(
        self, tools: NodeTools, seconds: float, enough: Callable[[], bool] = lambda: False
    ) -> None:
        self._tools, self._seconds, self._enough = tools, seconds, enough
        self._config = tools.context.config
        self._jobs: dict[str, Job] = {}
        self.folder = BundleFolder()

    def record(self) -> Manifest:
        """Record this node into `folder`, the files of a bundle, for as long as was asked for. Returns the manifest: what
        they contain and what is missing, before redaction.
        """
        began, memory = time.time(), self._memory()
        self._find_jobs()
        observations = self._observe(inquire(self._config.agent.state_dir))
        self._find_jobs()
        clocks = ClockPair(unix=time.time(), monotonic=time.monotonic())
        self._gather(observations, memory, clocks)
        self.folder.gaps.extend(observations.gaps)
        return Manifest(
            version=__version__,
            began_at=began,
            ended_at=time.time(),
            clocks=clocks,
            kernel_pids=sees_kernel_pids(self._tools.context.host),
            read_by=observations.read_by,
            counted=observations.read_by == "agent",
            gaps=tuple(self.folder.gaps),
        )

    # --- looking -----------------------------------------------------------------------------------

    def _memory(self) -> dict[str, msgspec.Raw]:
        """Before anything else: what is learned from now on is in the recording."""
        found: dict[str, msgspec.Raw] = {}
        state_dir = self._config.agent.state_dir
        self.folder.attempt("the agent's memory", lambda: found.update(facts.memory(state_dir)))
        return found

    def _find_jobs(self) -> None:
        self.folder.attempt(
            "the jobs of this node",
            lambda: self._jobs.update(
                {job.id: job for job in self._tools.capture.finder.find().jobs}
            ),
        )

    def _observe(self, answer: AgentAnswer) -> Observations:
        if answer.snapshot is not None:
            return self._ask_agent(answer)
        if answer.outcome in ("silent", "starting"):
            self.folder.miss("GPUs and status", answer.trouble, WAY_OUT)
            return Observations()
        if answer.trouble:
            self.folder.miss("the agent's status", answer.trouble, "ask as its user, or as root")
        return self._look_ourselves()

    def _ask_agent(self, answer: AgentAnswer) -> Observations:
        """As often as it looks, and more."""
        eye, state_dir = AgentObserver(), self._config.agent.state_dir
        pace = min(LATEST, max(SOONEST, self._config.stall.interval / PER_LOOK))
        until = time.monotonic() + self._seconds
        silent = 0
        while True:
            if answer.snapshot is not None:
                eye.take(answer.snapshot)
            else:
                silent += 1
            if self._over(until, pace):
                break
            answer = inquire(state_dir)
        if silent:
            self.folder.miss("the agent's status", f"it did not answer {silent} times", WAY_OUT)
        if answer.snapshot is not None and answer.snapshot.hidden_runs:
            hidden = f"the agent hides {answer.snapshot.hidden_runs} runs of other users"
            self.folder.miss("runs", hidden, "ask as root, or as a member of agent.group")
        return eye.finish()

    def _look_ourselves(self) -> Observations:
        tools = self._tools
        kernel = KernelLogSource(f"{tools.context.host.root}/dev/kmsg")
        eye = DirectObserver(
            tools.gpus,
            Holders(tools.context.host, tools.context.reader),
            tools.context.node,
            __version__,
            lambda: excluded_gpus(kernel.read().bursts, time.time()),
        )
        with contextlib.closing(kernel):
            return self._look_with(eye)

    def _look_with(self, eye: DirectObserver) -> Observations:
        until = time.monotonic() + self._seconds
        while True:
            eye.look(tuple(self._jobs.values()))
            if self._over(until, OWN_PACE):
                return eye.finish()

    def _over(self, until: float, pace: float) -> bool:
        """Wait for the next look; True where there is none."""
        left = until - time.monotonic()
        if left <= 0 or self._enough():
            return True
        time.sleep(min(pace, left))
        return False

    # --- gathering ---------------------------------------------------------------------------------

    def _gather(
        self, observations: Observations, memory: dict[str, msgspec.Raw], clocks: ClockPair
    ) -> None:
        folder, config = self.folder, self._config
        last = observations.last
        steps: dict[str, Callable[[], None]] = {
            "the status": lambda: self._statuses(observations),
            "the reads of the GPUs": lambda: self._reads(observations),
            "the jobs": lambda: folder.add_json(layout.JOBS, tuple(self._jobs.values())),
            "the memory": lambda: facts.add_memory(folder, memory),
            "the config": lambda: folder.add(layout.CONFIG, effective_yaml(config).encode()),
            "the versions": lambda: facts.versions(folder, _driver(observations)),
            "the doctor": self._doctor,
            "kernel log": lambda: self._kernel(clocks),
            "reports": lambda: facts.reports(folder, config),
            "/proc of the agent": lambda: facts.agent_proc(
                folder,
                self._tools.context.host,
                last.pid if last and observations.read_by == "agent" else 0,
            ),
        }
        for what, gather in steps.items():
            folder.attempt(what, gather)

    def _statuses(self, observations: Observations) -> None:
        self.folder.add_lines(layout.STATUSES, list(observations.statuses))
        if observations.last is not None:
            self.folder.add_json(layout.STATUS, observations.last)

    def _reads(self, observations: Observations) -> None:
        self.folder.add_lines(layout.WATCH, list(observations.watch))
        self.folder.add_lines(layout.FULL, list(observations.full))
        self.folder.add_lines(layout.FAILED, list(observations.failed))

    def _kernel(self, clocks: ClockPair) -> None:
        path = f"{self._tools.context.host.root}/dev/kmsg"
        since = clocks.monotonic - HOURS * 3600.0 - self._seconds
        self.folder.add(layout.KERNEL, read_kernel_log(path, since))

    def _doctor(self) -> None:
        chosen = str(self._config.capture.py_spy)
        world = CheckEnvironment(
            reader=self._tools.context.reader,
            starter=self._tools.context.spawner,
            py_spy=find_binary() if chosen == "auto" else chosen,
            state_dir=self._config.agent.state_dir,
            asleep=self._tools.context.spawner.helper_pid,
        )
        rows = tuple(examine(world))
        self.folder.add_json(layout.DOCTOR, {"uid": os.geteuid(), "checks": rows})


def _driver(observations: Observations) -> str:
    return observations.full[-1].driver_version if observations.full else ""
