"""One run, its hooks and the agent itself, in the words that `status` and the web pages share. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from mldebug.core.model import Gap
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.core.redact import clean
from mldebug.core.units import duration_words, percent
from mldebug.goodput.account.segments import GpuUse
from mldebug.goodput.evidence import RankShares
from mldebug.goodput.sentences import SLOW_WORKER, WAITS_FOR_DATA, slow_mount_words
from mldebug.jobs.heartbeat import phase_words
from mldebug.stall.sentences import STAGE_WORDS, stage_words
from mldebug.status.snapshot import RunState, Snapshot

STEP_USES = (GpuUse.PRODUCTIVE, GpuUse.STRAGGLER, GpuUse.LOST_WORK)
STALE = 90.0  # seconds: the longest `stall.interval` is 60


def pace_words(run: RunState) -> Iterator[str]:
    """The pace of a run in words: `step 41`, `loss 2.25`, and what its hooks report."""
    if run.step is not None:
        yield f"step {run.step}"
    if run.loss is not None:
        yield f"loss {run.loss:g}"
    yield from hook_words(run)


def state_words(run: RunState, *, brief: bool = False) -> str:
    """The state of a run in words: `watching: last step 1.2 s ago (usual gap 0.4 s); a stall after 30 s (5 times the usual)`.

    `brief`: without what the ranks do, for a page that shows the sentence of the incident beside it.
    """
    shown = _sentence(run).partition("; ")[0] if brief else _sentence(run)
    sentence = f"{shown}{_limit(run)}"
    return f"{stage_words(run.stage)}: {sentence}" if sentence else stage_words(run.stage)


def goodput_words(run: RunState) -> Iterator[str]:
    """Where the GPU hours of the run's job went, and how long its ranks wait for data where that is above a tenth of the time."""
    if run.goodput:
        yield f"GPU hours: {run.goodput}"
    if words := data_words(run):
        yield words


def data_words(run: RunState) -> str:
    """How long the ranks wait for data, and which rank waits most and what its workers do, or which mount has become slow; "" below
    10 % of the time. From samples of their stacks, else from the phases of their steps.
    """
    shares = run.slowness.shares if run.slowness else ()
    if slow := slow_mount_words(shares):
        return slow
    if shares:
        mean = sum(one.loading for one in shares) / len(shares)
        most = max(shares, key=lambda one: one.loading)
        least = min(shares, key=lambda one: one.loading)
        if most.loading < WAITS_FOR_DATA:
            return ""
        apart = most.loading - least.loading > WAITS_FOR_DATA / 2
        who = f": rank {most.rank} {percent(most.loading)}, rank {least.rank} {percent(least.loading)}"
        return f"waits for data {percent(mean)} of the time{who if apart else ', all ranks alike'}{_worker_words(most)}"
    waited = run.gpu_seconds.get(GpuUse.DATA_WAIT, 0.0)
    stepped = waited + sum(run.gpu_seconds.get(use, 0.0) for use in STEP_USES)
    share = waited / stepped if stepped else 0.0
    return (
        f"waits for data {percent(share)} of the time of its steps"
        if share >= WAITS_FOR_DATA
        else ""
    )


def _worker_words(one: RankShares) -> str:
    """What the processes of a rank do that waits for their data: they wait for files, or compute all the time; "" for neither."""
    evidence, many = one.evidence, one.evidence.busy_workers != 1
    if evidence.file_waiting >= SLOW_WORKER * one.loading:
        who = f"worker {evidence.worker}" if evidence.worker else "it"
        where = f" on {evidence.mount}" if evidence.mount else ""
        return f"; of rank {one.rank} {who} waits for files{where} {percent(evidence.file_waiting)} of the time"
    if evidence.busy_workers:
        return f"; of rank {one.rank} {evidence.busy_workers} worker{'s' if many else ''} compute{'' if many else 's'} all the time"
    return ""


def css_class(run: RunState) -> str:
    """How serious the run's state is, as a CSS class: bad with an incident, good while it is watched or has recovered, else quiet."""
    if run.incident:
        return "bad"
    return "good" if run.stage in ("watching", "recovered") else "quiet"


def _sentence(run: RunState) -> str:
    """Why it is quiet or not, without the reason of the limit, which follows."""
    return run.sentence.replace(f" ({run.why_timeout})", "") if run.why_timeout else run.sentence


def _limit(run: RunState) -> str:
    """How much silence counts as a stall, and where that comes from."""
    if run.incident or not run.timeout_seconds or run.stage in STAGE_WORDS:  # it is past that
        return ""
    return f"; a stall after {duration_words(round(run.timeout_seconds, 1))} ({run.why_timeout})"


def stale_words(age: float) -> str:
    """A sentence that the agent has updated nothing for `age` seconds (rounded down to minutes); "" while that is not long."""
    if age <= STALE:
        return ""
    minutes = duration_words(60 * (age // 60))
    return f"the agent has not looked for {minutes}: what it says is old; see its log"


def ailing_lines(agent: Snapshot) -> Iterator[str]:
    """One line for each thing that the agent cannot do now: sources that fail or hang, reports that are not stored."""
    for source in agent.sources:
        if source.name == "gpus" and agent.gpus_released_until:
            continue  # it is told by itself
        if source.stuck:
            yield f"its {source.name} is stuck"
        elif not source.success:
            yield f"its {source.name} fails: {source.error}"
    writes = next((one for one in agent.sources if one.name == "write"), None)
    if agent.reports_waiting and (writes is None or writes.stuck or not writes.success):
        count = agent.reports_waiting
        yield f"{count} {'report waits' if count == 1 else 'reports wait'} in memory for the state dir"
    if agent.reports_lost:
        yield f"{agent.reports_lost} reports or states could not be stored since it started"


MAX_PHASES = 4


LEAST_AGE = 1.0  # seconds: the wait for the next batch is a phase of each step


def hook_words(run: RunState) -> Iterator[str]:
    """What the hooks report, in words: `rank 2 at step 40 of 43`, `ranks 0-3 in checkpoint_save for 35 s`; empty without hooks."""
    yield from _behind(run)
    yield from _phases(run)
    if run.hooks and len(run.hooks) < len(run.ranks):
        yield f"hook in {len(run.hooks)} of {len(run.ranks)} ranks"


def _behind(run: RunState) -> Iterator[str]:
    """Those that are least far, where not all are equally far. One step apart is how ranks walk."""
    steps = {rank: one.step for rank, one in run.hooks.items() if one.step is not None}
    least, most = min(steps.values(), default=0), max(steps.values(), default=0)
    if most - least > 1:
        yield f"{_ranks([rank for rank, step in steps.items() if step == least])} at step {least} of {most}"


def _phases(run: RunState) -> Iterator[str]:
    in_phase = {
        rank: one for rank, one in run.hooks.items() if one.phase and one.phase_age >= LEAST_AGE
    }
    for phase in sorted({one.phase for one in in_phase.values()})[:MAX_PHASES]:
        ages = {rank: one.phase_age for rank, one in in_phase.items() if one.phase == phase}
        yield f"{_ranks(list(ages))} {phase_words(phase, max(ages.values()))}"


def _ranks(ranks: list[int]) -> str:
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {shorten_ranks(fold_ranks(ranks), 40)}"


def gap_lines(gaps: Sequence[Gap]) -> list[str]:
    """What could not be read: one line for each reason, however many processes it hit."""
    counted: dict[tuple[str, str, str], int] = {}
    for gap in gaps:
        key = (gap.what, gap.reason, gap.way_out)
        counted[key] = counted.get(key, 0) + 1
    return [_gap_line(key, count) for key, count in _most_first(counted)]


def _gap_line(key: tuple[str, str, str], count: int) -> str:
    what, reason, way_out = key
    times = f" ({count} times)" if count > 1 else ""
    return clean(f"{what}{times}: {reason}", 300) + (f" → {clean(way_out, 200)}" if way_out else "")


def _most_first(
    counted: Mapping[tuple[str, str, str], int],
) -> list[tuple[tuple[str, str, str], int]]:
    return sorted(counted.items(), key=lambda item: -item[1])
