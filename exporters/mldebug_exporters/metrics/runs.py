"""Training runs on this node: progress, step times, ranks by class, stage of suspicion."""

from collections import Counter
from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.records import STEP_BOUNDS, LogCounts, StepTimes
from mldebug.stall.signals import Stage
from mldebug.status.snapshot import RunState, Snapshot
from mldebug_exporters.exposition.families import (
    FamilyTable,
    Histogram,
    Importance,
    MetricGroup,
    Sample,
    known,
)

GONE = "when the run has ended or left this node: at the next scrape"
LOG_EVENTS = ("records", "binary", "oversized", "rotations", "truncations", "failures")
NOT_YET = "until a log or a hook of the run tells one, and when the run has ended"

TABLE = FamilyTable(absent=GONE, importance=Importance.RUN)
RUN = TABLE.labelled("run")
RUNS = TABLE.gauge(
    "runs", "Training runs on this node.", absent="never", importance=Importance.AGENT
)
INFO = RUN.info(
    "run",
    "A training run on this node, to join on `run`. The name is what its command line says.",
    "name",
    "launcher",
    "user",
)
ACROSS = RUN.info(
    "run_across_nodes",
    "The id by which all nodes of a run call it, as `mldebug status --cluster` shows it: to compare its nodes. `run` differs from node to node.",
    "run_across_nodes",
)
UP = RUN.gauge(
    "run_up",
    "1 while no incident of the run is open, 0 while one is: 1 means not known to be stalled. A run that has ended has"
    " no sample, so an alert on 0 ends with the run.",
)
MOVED = RUN.gauge(
    "run_progress_timestamp_seconds",
    "Unix time at which the run last made progress: a new step or record in its log or of its hooks; without either, the"
    " last sign that its processes moved.",
    absent="until the run is watched (a lone process that never told a step is not), and when it has ended",
)
QUIET = RUN.gauge(
    "run_progress_age_seconds",
    "Seconds since the run made progress, at the last look; alerts are better built on time() - the timestamp.",
    absent=MOVED.absent,
)
LIMIT = RUN.gauge(
    "run_stall_timeout_seconds",
    "Silence that counts as a stall at present.",
    absent="while no timeout runs: the job starts, ends, or is not watched",
)
ATTEMPT = RUN.gauge("run_attempt", "Elastic restarts of the run by its launcher so far.")
WORLD = RUN.gauge("run_world_size", "Ranks of the run on all nodes.")
RANKS = RUN.gauge("run_ranks", "Ranks with a process on this node.")
LOST = RUN.gauge("run_ranks_lost", "Ranks that should be on this node and are gone.")
STEP = RUN.gauge(
    "run_step",
    "Last step that the run's log told; it falls with a new epoch. Without one the step of the furthest rank's hook.",
    absent=NOT_YET,
)
LOSS = RUN.gauge(
    "run_loss",
    "Last loss that the run's log told, else its hook; NaN and +Inf are what a log said.",
    absent=NOT_YET,
)
PACE = RUN.gauge(
    "run_last_step_duration_seconds",
    "Last duration of a step that the run's log told, else what its hooks measured.",
    absent=NOT_YET,
)
TIMES = RUN.histogram(
    "run_step_duration_seconds",
    "Durations of steps since the agent met the run. Where the log tells them, those (a record of N steps counts"
    " N times); where it or the ranks' hooks tell only steps, the time between them, shared by the steps of one poll.",
    absent="until a log or a hook of the run has told two steps, or a log one with its duration; and when the run has ended",
    importance=Importance.DETAIL,
)
LOG = RUN.counter(
    "run_log_events",
    "What the agent met in the logs of the run: records of training, lines that are no text (binary) or too long"
    " to be a record (oversized), rotations, truncations, and polls that could not read (failures).",
    "event",
    absent="while no log is found, and when the run has ended",
    importance=Importance.DETAIL,
)
SKIPPED = RUN.counter(
    "run_log_skipped_bytes",
    "Bytes of the run's logs left out because more came than one look can parse.",
    absent=LOG.absent,
    importance=Importance.DETAIL,
)
STAGE = RUN.gauge(
    "run_stage",
    "State set: 1 for how far the suspicion has come, 0 for the other stages.",
    "stage",
    importance=Importance.DETAIL,
)
CLASSES = RUN.gauge(
    "run_ranks_by_class",
    "Ranks by what the last stack sample shows them in.",
    "class",
    absent="while nobody is suspected: no stacks are sampled then",
    importance=Importance.DETAIL,
)
CLASS = RUN.info(
    "rank_class",
    "What the last stack sample shows each rank in.",
    "rank",
    "class",
    absent="while nobody is suspected: no stacks are sampled then",
    importance=Importance.RANK,
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """The samples of all runs; values that cannot be read have no sample."""
    yield Sample(RUNS, (), len(snapshot.runs))
    for run in snapshot.runs:
        yield from _always(run)
        yield from _where_known(run)
        yield from _log(run)
        yield from _suspicion(run)


def _always(run: RunState) -> Iterator[Sample]:
    one = (run.id,)
    yield Sample(INFO, (run.id, run.name, run.launcher, run.user))
    if run.id_across_nodes:
        yield Sample(ACROSS, (run.id, run.id_across_nodes))
    yield Sample(UP, one, 0 if run.incident else 1)
    yield Sample(ATTEMPT, one, run.attempt)
    yield Sample(WORLD, one, run.world_size)
    yield Sample(RANKS, one, len(run.ranks))
    yield Sample(LOST, one, len(run.lost))


def _where_known(run: RunState) -> Iterator[Sample]:
    one = (run.id,)
    if run.progress_at is not None:
        yield Sample(MOVED, one, run.progress_at)
        yield Sample(QUIET, one, run.quiet_seconds)
    if run.timeout_seconds:
        yield Sample(LIMIT, one, run.timeout_seconds)
    yield from known(one, (STEP, run.step), (LOSS, run.loss), (PACE, run.step_seconds))
    if run.step_times is not None:
        yield Sample(TIMES, one, _histogram(run.step_times))


def _log(run: RunState) -> Iterator[Sample]:
    counts = run.log_counts
    if counts == LogCounts():
        return
    for event in LOG_EVENTS:
        yield Sample(LOG, (run.id, event), getattr(counts, event))
    yield Sample(SKIPPED, (run.id,), counts.skipped_bytes)


def _histogram(times: StepTimes) -> Histogram:
    return Histogram(STEP_BOUNDS, times.counts, times.seconds)


def _suspicion(run: RunState) -> Iterator[Sample]:
    for stage in Stage:
        yield Sample(STAGE, (run.id, stage.value), int(run.stage == stage))
    for name, count in sorted(Counter(run.classes.values()).items()):
        yield Sample(CLASSES, (run.id, name), count)
    for rank, name in sorted(run.classes.items()):
        yield Sample(CLASS, (run.id, str(rank), name))


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `runs`: training runs on this node: progress, step times, ranks by class, stage of suspicion."""
    return MetricGroup(TABLE.families, samples)
