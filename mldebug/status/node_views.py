"""What this node shows of itself to a person who looks at several nodes, or at one all the time. Pure.

Names and texts that a job has chosen are cleaned here, before they leave the node.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mldebug.alerts.hub_delivery import fleet_lines
from mldebug.alerts.status_lines import event_lines
from mldebug.cluster.run_identity import job_key
from mldebug.core.model import Gap, GpuBrief, Job, NodeBrief, RankBrief, Role, RunBrief
from mldebug.core.model.node_brief import MAX_GPUS, MAX_LINES, MAX_RANKS, MAX_RUNS
from mldebug.core.redact import clean
from mldebug.goodput.sentences import slow_words
from mldebug.hardware.gpu.readings import GpuReading, GpuWatch
from mldebug.hardware.health.sentences import complaints, state_of_gpu
from mldebug.hardware.host_memory.state import alarms
from mldebug.jobs.heartbeat import phase_words
from mldebug.jobs.schedulers.status_lines import orphan_line, scheduler_lines
from mldebug.status.gpu_lines import hardware_lines
from mldebug.status.gpu_table import busy_of, missing, power_of, user_words
from mldebug.status.gpu_view import GpuOverview, names_of, of_agent
from mldebug.status.run_lines import ailing_lines, data_words, stale_words, state_words
from mldebug.status.snapshot import RunState, Snapshot, is_run_of, job_of
from mldebug.storage.filesystems.state import StorageState

PHASE = 1.0  # seconds: the wait for the next batch is a phase of each step
MOVING, UNSEEN = "moving", "unseen"
WIDEST = 300


def node_view(
    node: str,
    now: float,
    jobs: Sequence[Job] = (),
    agent: Snapshot | None = None,
    *,
    trouble: str = "",
    overview: GpuOverview | None = None,
    storage: StorageState | None = None,
    gaps: Sequence[Gap] = (),
) -> NodeBrief:
    """The view of one node. `now`: unix time; `jobs`: found here just now; `agent`: what its agent says, `trouble`: why it says nothing;
    `overview`, `storage`: read without an agent.
    """
    gpus = of_agent(agent) if agent is not None and overview is None else overview
    state = agent.storage if agent is not None else storage
    return NodeBrief(
        node=clean(node, 100),
        age=max(0.0, now - agent.at) if agent else 0.0,
        agent_seconds=max(0.0, now - agent.started_at) if agent else None,
        agent_trouble=clean(trouble, WIDEST),
        cluster=clean(agent.cluster, WIDEST) if agent else "",
        runs=tuple(_runs(node, now, jobs, agent))[:MAX_RUNS],
        gpus=gpu_briefs(gpus)[:MAX_GPUS] if gpus else (),
        gpu_note=_gpu_note(gpus),
        alerts=_lines(_alerts(agent, now) if agent else _complaints(gpus)),
        storage_alerts=_lines(one.whole for one in state.alarms) if state else (),
        storage=_lines(_filesystems(state)) if state else (),
        gaps=_lines(dict.fromkeys(f"{gap.what}: {gap.reason}" for gap in gaps)),
    )


def _lines(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(clean(line, WIDEST) for line in lines)[:MAX_LINES]


def _filesystems(state: StorageState) -> Iterator[str]:
    for row in state.rows.get("filesystems", ()):
        yield str(row.get("line", ""))


def _alerts(agent: Snapshot, now: float) -> Iterator[str]:
    """All that is wrong besides the incidents, which their runs show."""
    if stale := stale_words(now - agent.at):
        yield stale
    yield from event_lines(agent.events, {run.incident for run in agent.runs}, now)
    yield from fleet_lines(agent.fleet)
    yield from ailing_lines(agent)
    yield from alarms(agent.memory) if agent.memory else ()
    yield from (line for line, bad in scheduler_lines(agent.schedulers, now) if bad)
    yield from (orphan_line(one, now) for one in agent.orphans or ())
    yield from (line.text for line in hardware_lines(agent, now) if line.bad)


def _complaints(overview: GpuOverview | None) -> Iterator[str]:
    if overview is not None:
        yield from (one.text for one in complaints(overview.health, overview.names(), overview.at))


# --- GPUs ------------------------------------------------------------------------------------------


def _gpu_note(overview: GpuOverview | None) -> str:
    if overview is None:
        return ""
    if overview.released_until:
        return "the agent has let go of the GPUs"
    if overview.gpu_gap is not None:
        return clean(f"not read: {overview.gpu_gap.reason}", WIDEST)
    return "no GPU answers here: there is no NVIDIA library" if overview.no_library else ""


def gpu_briefs(overview: GpuOverview) -> tuple[GpuBrief, ...]:
    """Each GPU of the overview by index, those that are missing or do not answer included."""
    watched = {one.uuid: one for one in overview.watch.gpus} if overview.watch else {}
    answering = overview.gpus.gpus if overview.gpus else ()
    found = [_brief(one, watched.get(one.uuid), overview) for one in answering]
    found += [GpuBrief(index=index, state="missing") for index, _, _ in missing(overview)]
    return tuple(sorted(found, key=lambda one: one.index))


def _brief(gpu: GpuReading, watch: GpuWatch | None, overview: GpuOverview) -> GpuBrief:
    user = user_words(gpu.uuid, gpu, overview)
    return GpuBrief(
        index=gpu.index,
        name=clean(gpu.name, 60),
        busy=busy_of(gpu, watch),
        memory_used=gpu.memory_used_bytes,
        memory_total=gpu.memory_total_bytes,
        watts=power_of(gpu, watch),
        limit_watts=gpu.power_limit_watts,
        celsius=gpu.temperature_celsius,
        user="" if user == "-" else user,
        state=state_of_gpu(overview.health, gpu.uuid).value,
    )


# --- runs ------------------------------------------------------------------------------------------


def _runs(node: str, now: float, jobs: Sequence[Job], agent: Snapshot | None) -> Iterator[RunBrief]:
    """Those that were found here, and those that only the agent knows."""
    known = list(agent.runs) if agent else []
    if agent is not None and agent.replay:
        jobs = ()
    indices = {uuid: one.index for uuid, one in names_of(agent.gpus).items()} if agent else {}
    for job in jobs:
        state = next((run for run in known if is_run_of(run, job)), None)
        if state is not None:
            known.remove(state)
        yield _run(node, now, job, state, indices)
    for state in known:
        yield _run(node, now, job_of(state), state, indices)


def _run(
    node: str, now: float, job: Job, state: RunState | None, indices: Mapping[str, int]
) -> RunBrief:
    here = {rank.rank for rank in job.ranks}
    expected = max((rank.local_world_size or 0 for rank in job.ranks), default=0)
    lost = {one.rank: one.reason for one in job.lost} | (state.exits if state else {})
    numbers = sorted(here | {*lost} | ({*state.lost} if state else set()))
    first = RunBrief(
        key=job_key(job, node),
        id=clean(job.id, 60),
        name=clean(job.name, 60),
        launcher=clean(job.launcher, 40),
        user=clean(job.user, 40) or str(job.uid),
        world_size=job.world_size,
        attempt=job.attempt,
        age=max(0.0, now - job.started_at) if job.started_at else 0.0,
        ranks=tuple(
            _rank(rank, rank in here, lost.get(rank, ""), state, indices) for rank in numbers
        )[:MAX_RANKS],
        absent=max(0, expected - len(here)) if here else 0,
    )
    return _watched(first, state) if state is not None else first


def _watched(view: RunBrief, state: RunState) -> RunBrief:
    """With what its agent knows."""
    return RunBrief(
        **{name: getattr(view, name) for name in ("key", "id", "name", "launcher", "user")},
        **{name: getattr(view, name) for name in ("world_size", "attempt", "age", "ranks")},
        absent=view.absent,
        watched=True,
        step=state.step,
        step_seconds=state.step_seconds,
        loss=state.loss,
        stage=state.stage,
        sentence=clean(state_words(state), 400),
        slowness=clean(slow_words(state.slowness, state.world_size), 400) if state.slowness else "",
        data_wait=clean(data_words(state), WIDEST),
        incident=clean(state.incident, 100),
        report=clean(state.report, 400),
    )


def _rank(
    rank: int, here: bool, exit_words: str, run: RunState | None, indices: Mapping[str, int]
) -> RankBrief:
    if not here:
        return RankBrief(
            rank=rank, state=Role.EXITED, doing=clean(exit_words, 100),
            culprit=run is not None and rank in run.culprits,
        )  # fmt: skip
    if run is None:
        return RankBrief(rank=rank, state=UNSEEN)
    hook = run.hooks.get(rank)
    quiet = MOVING if not run.incident and run.stage in ("watching", "recovered") else UNSEEN
    shares = {one.rank: one for one in run.slowness.shares} if run.slowness else {}
    slow = run.slowness is not None and any(one.rank == rank for one in run.slowness.ranks)
    doing = run.frames.get(rank, "")
    if not doing and hook is not None and hook.phase and hook.phase_age >= PHASE:
        doing = phase_words(hook.phase, hook.phase_age)
    return RankBrief(
        rank=rank,
        state=str(run.roles.get(rank, quiet)) if rank in run.classes else quiet,
        step=hook.step if hook else None,
        waits=shares[rank].waiting if rank in shares else None,
        gpu=indices.get(run.gpus.get(rank, "")),
        culprit=rank in run.culprits,
        slow=slow,
        doing=clean(doing, 100),
    )
