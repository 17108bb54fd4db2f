"""Looks at this node for `mldebug preflight`: folders, /dev/shm, GPUs, ports, the training environment's Python and packages."""

import json
import os
import platform
import time
from collections.abc import Iterator, Sequence

import msgspec

from mldebug.core.errors import MldebugError
from mldebug.core.redact import clean
from mldebug.jobs.run_records.recorded_settings import recorded_environment
from mldebug.probes.baselines import shipped
from mldebug.probes.checks import NodeCheck
from mldebug.probes.preflight.findings import FolderSpace, NodeFindings, folder_checks, shm_check
from mldebug.probes.preflight.rendezvous import Endpoint, meeting_check
from mldebug.storage.filesystems.canary import CanaryWrite, sentence
from mldebug_agents.hardware.one_shot import OneShotReader
from mldebug_agents.probes.node_stages import DRIVER_SECONDS, NodeProbe, NodeRequirements
from mldebug_agents.probes.preflight.rendezvous import MeetingThread
from mldebug_agents.probes.session import ProbeSettings, open_session
from mldebug_agents.probes.tools import ProbeTools
from mldebug_agents.storage.child.client import MountClient
from mldebug_agents.storage.child.messages import CanaryFile, MountAnswer, MountRequest, QuotaOwners
from mldebug_agents.system.spawn import Spawner

TRIAL = 4096  # bytes of the test file in each folder
FOLDER_SECONDS = 8.0  # for all folders
PYTHON_SECONDS = 30.0  # an environment on a shared filesystem starts slowly
MOST_PACKAGES = 2000
STAGES, LOAD_STAGES = ("driver", "ib", "dcgm"), ("memory", "matmul", "nccl")
LOAD_SECONDS = 60.0
_LIST = (
    "import importlib.metadata as m, json, platform\n"
    "found = {'python': platform.python_version()}\n"
    f"for one in list(m.distributions())[:{MOST_PACKAGES}]:\n"
    "    name = (one.metadata['Name'] or '').lower().replace('_', '-').replace('.', '-')\n"
    "    if name: found.setdefault(name, one.version)\n"
    "found.update({'nccl': v for k, v in found.items() if k.startswith('nvidia-nccl-cu')})\n"
    "print('mldebug-packages ' + json.dumps(found))\n"
)


class MeetingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Where the ranks will meet, and how many nodes try that now: 1, where nobody else was asked. `token`: of this meeting."""

    where: Endpoint
    nodes: int = 1
    token: str = ""


class PreflightRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the job needs of each node. `folders`: that it writes to, the one of its checkpoints first; `checkpoint`: bytes of one,
    0: not known; `checkpoints`: for how many there must be room; `gpus`, `ports`: see `NodeRequirements`; `python`: the training
    environment's, "" for none; `job`: with whose last good run to compare, "" for none; `meeting`: None for none.
    """

    folders: tuple[str, ...] = ()
    checkpoint: int = 0
    checkpoints: int = 2
    gpus: int | None = None
    ports: str | None = None
    python: str = ""
    load: bool = False  # also measure the GPUs
    job: str = ""
    meeting: MeetingRequest | None = None


def look_at_node(tools: ProbeTools, mounts: MountClient, wanted: PreflightRequest, name: str = "") -> NodeFindings:  # fmt: skip
    """All that is checked on this node without putting load on it. Every part has a deadline. `name`: of this node, for the others."""
    began = time.monotonic()
    thread = _start_meeting(wanted.meeting, name or tools.context.node)
    checks = list(folder_checks(_folders(mounts, wanted.folders), wanted.checkpoint, wanted.checkpoints))  # fmt: skip
    checks.append(_shm(mounts))
    probe = NodeProbe(NodeRequirements(stages=STAGES, gpus=wanted.gpus, ports=wanted.ports), shipped(), checks.append)  # fmt: skip
    probe.look(tools)
    packages: dict[str, str] = {}
    if wanted.python:
        packages, check = _packages(tools.context.spawner, wanted.python)
        checks.append(check)
    if thread and wanted.meeting:
        found, seconds = thread.result(), time.monotonic() - began
        checks += meeting_check(wanted.meeting.where, wanted.meeting.nodes, found, seconds)
    return NodeFindings(
        node=tools.context.node,
        checks=tuple(checks),
        facts=_facts(tools),
        packages=packages,
        environment=recorded_environment(dict(os.environ)),
        clock=time.time(),
        seconds=time.monotonic() - began,
    )


def measure_node(wanted: PreflightRequest) -> list[NodeCheck]:
    """Measure each GPU, and NCCL between them, as `mldebug probe node` does, for `LOAD_SECONDS` at most."""
    checks: list[NodeCheck] = []
    probe = NodeProbe(NodeRequirements(stages=LOAD_STAGES, gpus=wanted.gpus), shipped(), checks.append)  # fmt: skip
    try:
        with open_session(ProbeSettings(python=wanted.python or None, duration=LOAD_SECONDS)) as session:  # fmt: skip
            probe.load(session)
    except MldebugError as error:
        probe.cut = error.message
    if probe.cut:
        checks.append(NodeCheck(stage="load", state="failed", sentence=f"could not be measured: {probe.cut}"))  # fmt: skip
    return checks


def _start_meeting(wanted: MeetingRequest | None, name: str) -> MeetingThread | None:
    """Begin to meet the other nodes, beside all other checks."""
    if wanted is None:
        return None
    thread = MeetingThread(wanted.where, name, wanted.nodes, wanted.token)
    thread.start()
    return thread


def _folders(mounts: MountClient, folders: Sequence[str]) -> list[FolderSpace]:
    """What is seen of each folder when a small file is written there, and removed. A folder that hangs holds up no other."""
    if not folders:
        return []
    name = f".mldebug-preflight-{os.uname().nodename}-{os.getpid()}-"
    owners = QuotaOwners(((0, os.getuid()), (1, os.getgid())))
    requests = [
        request
        for number, folder in enumerate(map(os.fsencode, folders))
        for request in (
            MountRequest(0, folder, CanaryFile(f"{name}{number}", TRIAL)),
            MountRequest(0, folder),
            MountRequest(0, folder, owners=owners),
        )
    ]
    answers = _answers_of(mounts, requests)
    found = zip(folders, answers[::3], answers[1::3], answers[2::3], strict=True)
    return [_folder_space(folder, *three) for folder, *three in found]


def _answers_of(mounts: MountClient, requests: Sequence[MountRequest]) -> Sequence[MountAnswer]:
    """The answers; the reason in each where the child that opens paths has itself ended or hangs."""
    try:
        return mounts.ask(requests, FOLDER_SECONDS)
    except OSError as error:
        return [MountAnswer(mount=0, reason=f"it could not be asked: {error}")] * len(requests)


def _folder_space(
    folder: str, trial: MountAnswer, space: MountAnswer, quotas: MountAnswer
) -> FolderSpace:
    stuck = max(trial.stuck, space.stuck)
    left = [one.limit - one.used for one in quotas.blocks if one.limit]
    wrong = ""
    if trial.wrote is not None and trial.wrote.errno:
        whole = sentence(CanaryWrite(path=folder, result=trial.wrote), TRIAL)
        wrong = whole.removeprefix(f"{folder}: ").replace("the agent may", "this user may")
        wrong = f"cannot be written: {wrong.removeprefix('a test write failed: ')}"
    elif trial.wrote is None and not stuck:
        wrong = f"cannot be written: {trial.reason}"
    room = space.space
    return FolderSpace(
        path=clean(folder, 200),
        available=room.available if room else 0,
        quota_left=max(0, min(left)) if left else None,
        inodes_free=room.inodes_free if room and room.inodes else None,
        stuck=stuck,
        wrong=wrong,
    )


def _shm(mounts: MountClient) -> NodeCheck:
    (answer,) = _answers_of(mounts, [MountRequest(0, b"/dev/shm")])
    return shm_check(answer.space.size, answer.space.available) if answer.space else shm_check(0, 0)


def _packages(spawner: Spawner, python: str) -> tuple[dict[str, str], NodeCheck]:
    """The packages of the training environment by its own Python; nothing of them is imported."""
    done = spawner.run((python, "-I", "-c", _LIST), timeout=PYTHON_SECONDS, max_output=1 << 20)
    found = _listed(done.stdout.decode(errors="replace"))
    if found:
        words = ", ".join(f"{name} {found[name]}" for name in ("python", "torch", "nccl") if name in found)  # fmt: skip
        return found, NodeCheck(stage="python", state="fine", sentence=f"python: {words}", seconds=done.seconds)  # fmt: skip
    why = f"did not start within {PYTHON_SECONDS:.0f} s" if done.timed_out else f"cannot be used: {clean(done.error or done.stderr.decode(errors='replace')[-300:], 200) or 'it printed nothing'}"  # fmt: skip
    return {}, NodeCheck(stage="python", state="failed", sentence=f"{clean(python, 200)} {why}", seconds=done.seconds)  # fmt: skip


def _listed(output: str) -> dict[str, str]:
    """The packages in what the Python printed; a start-up file of the site may have printed before."""
    lines = (line for line in output.splitlines() if line.startswith("mldebug-packages "))
    try:
        found = json.loads(next(lines, "").partition(" ")[2] or "{}")
    except ValueError:
        return {}
    return {clean(str(name), 80): clean(str(version), 60) for name, version in found.items()}


def _facts(tools: ProbeTools) -> dict[str, str]:
    return {name: value for name, value in _read_facts(tools) if value}


def _read_facts(tools: ProbeTools) -> Iterator[tuple[str, str]]:
    yield "kernel", platform.release()
    yield "cores", str(os.cpu_count() or 0)
    yield "architecture", platform.machine()
    gpus = OneShotReader(tools.context, tools.gpus, tools.finder.find(), DRIVER_SECONDS, alone=True).take().gpus  # fmt: skip
    if gpus is not None:
        names = [one.name for one in gpus.gpus]
        yield "driver", gpus.driver_version
        yield "GPUs", ", ".join(f"{names.count(one)} x {one}" for one in sorted(set(names)))
