"""The stages of `probe node`, one after the other, each made into checks as soon as it has ended."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from mldebug.hardware.gpu.readings import NodeGpus
from mldebug.hardware.health.model import HealthState
from mldebug.hardware.health.sentences import GpuName, complaints
from mldebug.probes.baselines import Baselines
from mldebug.probes.checks import NodeCheck
from mldebug.probes.dcgm import SECONDS as DIAG_SECONDS
from mldebug.probes.dcgm import diag_check
from mldebug.probes.node_checks import stage_checks
from mldebug.probes.ports import Port, ports_check, read_port
from mldebug_agents.hardware.one_shot import OneShotReader
from mldebug_agents.probes.child import ChildExit, Event
from mldebug_agents.probes.measurement import Callbacks, CollectivesRequest, Measurement
from mldebug_agents.probes.session import Session
from mldebug_agents.probes.tools import ProbeTools
from mldebug_agents.system.host import Host

STAGES = (
    "driver",
    "ib",
    "dcgm",
    "memory",
    "matmul",
    "fp8",
    "copy",
    "peers",
    "nccl",
    "dram",
    "disk",
)
OF_GPUS = ("memory", "matmul", "fp8", "copy", "peers", "nccl")
WITHOUT_TORCH = ("driver", "ib", "dcgm")
DRIVER_SECONDS = 30.0  # a driver that no process uses loads firmware first
LARGE, USUAL = 8 << 30, 1 << 30  # bytes: what was published of NCCL holds for large payloads
ROOM = 4  # times the payload that must be free for it

Tell = Callable[[NodeCheck], None]


class NodeRequirements(msgspec.Struct, frozen=True, kw_only=True):
    """Which stages to run, and what the node must have to pass."""

    stages: tuple[str, ...] = STAGES
    gpus: int | None = None  # so many at least
    ports: str | None = None  # see `ports_check`
    disk: str = ""
    dcgm: int = 1  # level of `dcgmi diag -r`; from 2 on it puts load on the GPUs
    cpus_only: bool = False  # GPUs are left out on purpose


class NodeProbe:
    """Runs the stages of `mldebug probe node`, once. Results are added to `checks` as they come.

    `cut`: why not all stages could run, which is not held against the node; `way_out`: what to do about it.
    """

    def __init__(self, wanted: NodeRequirements, baselines: Baselines, tell: Tell) -> None:
        self._wanted, self._baselines, self._tell = wanted, baselines, tell
        self.checks: list[NodeCheck] = []
        self.cut, self.way_out = "", "measure when the node is idle, with a longer --duration"
        self.node = ""
        self._answering = 0
        self._models: dict[str, str] = {}
        self._free = 0
        self._lacking = ""

    def look(self, tools: ProbeTools) -> None:
        """Run the stages that only read: driver, InfiniBand ports, the first level of DCGM's diagnostics."""
        self.node = tools.context.node
        if "driver" in self._wanted.stages:
            self._driver(tools)
        if "ib" in self._wanted.stages:
            self._add(ports_check(list(read_ports(tools.context.host)), self._wanted.ports))
        if self._wanted.dcgm == 1:
            self._dcgm(tools)

    def _dcgm(self, tools: ProbeTools) -> None:
        """NVIDIA's own diagnostics, where they are installed. A run that was late is a finding: what it left behind is in the driver."""
        if "dcgm" not in self._wanted.stages:
            return
        program, level = shutil.which("dcgmi"), self._wanted.dcgm
        if program is None:
            self._add(NodeCheck(stage="dcgm", state="skipped", sentence="dcgm: dcgmi is not installed"))  # fmt: skip
            return
        done = tools.context.spawner.run((program, "diag", "-r", str(level), "-j"), timeout=DIAG_SECONDS[level])  # fmt: skip
        late = f"had not ended after {done.seconds:.0f} s" if done.timed_out else ""
        self._add(diag_check(done.stdout, level, late or (done.error and f"could not be run: {done.error}"), done.seconds))  # fmt: skip

    def load(self, session: Session) -> None:
        """Run the stages that put load on the node, in child processes."""
        if self._wanted.dcgm > 1:
            self._dcgm(session.tools)
        gpus = session.facts.gpus if session.device == "cuda" else 0
        skipped = self._skipped(gpus)
        for stage, why in skipped.items():
            self._add(NodeCheck(stage=stage, state="skipped", sentence=f"{stage}: {why}"))
        stages = [one for one in self._wanted.stages if one not in (*skipped, *WITHOUT_TORCH)]
        self._children(session, [one for one in stages if one != "nccl"], gpus)
        if "nccl" in stages and not self.cut:
            self._nccl(session, gpus)
        if not self.cut and self._lacking:
            self.cut, self.way_out = self._lacking, "name another --disk, or mount it"
        if not self.cut and (unseen := self._unseen(gpus)):
            self.cut = unseen
            self.way_out = "name the training environment's --python; is CUDA_VISIBLE_DEVICES set?"

    def _skipped(self, gpus: int) -> dict[str, str]:
        """Stages that cannot be done here, with the reason."""
        found = {}
        for stage in self._wanted.stages:
            if stage in OF_GPUS and not gpus:
                found[stage] = "PyTorch sees no GPU here"
            elif stage in ("peers", "nccl") and gpus < 2:
                found[stage] = "there is only one GPU"
            elif stage == "disk" and not self._wanted.disk:
                found[stage] = "no --disk was named"
        return found

    def _unseen(self, gpus: int) -> str:
        """GPUs of which nothing was measured though they should have been: another Python's fault, or the driver's."""
        wanted = self._wanted.gpus or (0 if gpus else self._answering)
        if gpus >= wanted or self._wanted.cpus_only or not set(OF_GPUS) & set(self._wanted.stages):
            return ""
        return f"PyTorch sees {gpus} of {wanted} GPUs"

    def _driver(self, tools: ProbeTools) -> None:
        begin = time.monotonic()
        overview = OneShotReader(
            tools.context, tools.gpus, tools.finder.find(), DRIVER_SECONDS, alone=True
        ).take()
        seconds = time.monotonic() - begin
        count = self._answering = len(overview.gpus.gpus) if overview.gpus else 0
        wrong = [overview.gpu_gap.reason] if overview.gpu_gap and not overview.no_library else []
        wrong += [f"GPU {one.index} does not answer: {one.reason}" for one in (overview.gpus.lost if overview.gpus else ())]  # fmt: skip
        if self._wanted.gpus is not None and count < self._wanted.gpus:
            wrong.append(f"{count} of {self._wanted.gpus} GPUs answer")
        unfit = [one for one in overview.health if one.state is HealthState.UNHEALTHY]
        wrong += [one.text for one in complaints(unfit, _names(overview.gpus), overview.at)]
        if wrong:
            self._add(NodeCheck(stage="driver", state="failed", sentence=f"driver: {'; '.join(wrong)}", seconds=seconds))  # fmt: skip
        elif not count:
            self._add(NodeCheck(stage="driver", state="skipped", sentence="driver: there is no GPU library here"))  # fmt: skip
        else:
            version = overview.gpus.driver_version if overview.gpus else ""
            self._add(NodeCheck(stage="driver", state="fine", sentence=f"driver: {count} GPUs answer, version {version}", seconds=seconds))  # fmt: skip

    def _children(self, session: Session, stages: Sequence[str], gpus: int) -> None:
        order = {"stages": stages, "gpus": gpus, "disk": self._wanted.disk}
        left = list(stages)

        def on_event(event: Event) -> None:
            if event["event"] == "stage":
                left.remove(event["stage"])
                self._stage(event)

        if stages:
            ended = session.run("node", order, on_event, env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
            if left and not self._cut(ended):
                why = ended.reason or "it was not done"
                self._add(NodeCheck(stage=left[0], state="failed", sentence=f"{left[0]}: {why}"))

    def _cut(self, ended: ChildExit) -> bool:
        """Whether it ended for a reason that says nothing of the node."""
        if ended.outcome == "cancelled":
            self.cut = f"the probe was ended: {ended.reason}"
        elif ended.outcome == "late":
            self.cut = self.cut or "--duration left no time for all stages"
        return bool(self.cut)

    def _stage(self, event: Event) -> None:
        if event["cut"]:
            self.cut = f"--duration left no time for {event['stage']}"
            return
        if absent := event["results"].get("node", {}).get("absent"):
            self._no_folder(absent)
            return
        for who, one in event["results"].items():
            if "name" in one:
                self._models[who] = one["name"]
            self._free = (
                min(self._free or one["free"], one["free"]) if "free" in one else self._free
            )
            self._models.setdefault(who, "")
        for check in stage_checks(
            event["stage"], event["results"], event["seconds"], self._models, self._baselines
        ):
            self._add(check)

    def _no_folder(self, folder: str) -> None:
        """A word that was mistyped would drain one node after the other."""
        self._add(NodeCheck(stage="disk", state="skipped", sentence=f"disk: there is no folder {folder}"))  # fmt: skip
        self._lacking = f"there is no folder {folder} on this node"

    def _nccl(self, session: Session, gpus: int) -> None:
        begin = time.monotonic()
        payload = LARGE if self._free >= ROOM * LARGE else USUAL
        request = CollectivesRequest(nproc=gpus, ops=("all_reduce",), sizes=(payload,))
        quiet = Callbacks(result=lambda _: None, skipped=lambda _: None, joined=lambda _: None)
        measurement = Measurement(request, quiet)
        ended = measurement.run(session)
        seconds = time.monotonic() - begin
        if not measurement.results and self._cut(ended):
            return
        if not measurement.results:
            why = ended.reason or (measurement.skipped or ["nothing was measured"])[0]
            self._add(
                NodeCheck(stage="nccl", state="failed", sentence=f"nccl: {why}", seconds=seconds)
            )
            return
        found = measurement.results[0]
        if not found.correct:
            self._add(NodeCheck(stage="nccl", state="failed", sentence="nccl: all_reduce gave wrong values", seconds=seconds))  # fmt: skip
        self._judge_nccl(found.busbw_bytes_per_second or 0.0, payload, gpus, seconds)

    def _judge_nccl(self, speed: float, payload: int, gpus: int, seconds: float) -> None:
        names = set(self._models.values()) - {""}
        limit = self._baselines.limit(names.pop(), "all_reduce", gpus) if len(names) == 1 else None
        low = limit is not None and payload >= LARGE and speed < limit[0]
        sentence = f"nccl: all_reduce of {payload >> 30} GiB has {speed / 1e9:.3g} GB/s on the bus"
        if limit is not None and low:
            sentence += f", at least {limit[0] / 1e9:.3g} are expected"
        self._add(NodeCheck(stage="nccl", state="failed" if low else "fine", sentence=sentence, seconds=seconds, figures={"node": speed}))  # fmt: skip

    def _add(self, check: NodeCheck) -> None:
        self.checks.append(check)
        self._tell(check)


def read_ports(host: Host) -> Iterator[Port]:
    """Yield every RDMA (InfiniBand, RoCE) port of this node."""
    for folder in sorted(Path(f"{host.root}/sys/class/infiniband").glob("*/ports/*"))[:256]:
        state, physical, speed = (_text(folder / name) for name in ("state", "phys_state", "rate"))
        yield read_port(f"{folder.parent.parent.name}/{folder.name}", state, physical, speed)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:100]
    except OSError:
        return ""  # this adapter does not tell it


def _names(gpus: NodeGpus | None) -> dict[str, GpuName]:
    return {one.uuid: GpuName(index=one.index, bus_id=one.bus_id) for one in (gpus.gpus if gpus else ())}  # fmt: skip
