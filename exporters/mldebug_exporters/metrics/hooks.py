"""What the ranks' own hooks tell (`mldebug run`): how far each is, what they do besides stepping, values of their steps."""

from collections import Counter
from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.status.snapshot import RunState, Snapshot
from mldebug_exporters.exposition.families import FamilyTable, Importance, MetricGroup, Sample

PHASES = ("checkpoint_save", "checkpoint_load", "compile", "data_wait", "evaluate")
OTHER = "other"  # a job may give its phases any name
ABSENT = "while no rank of the run has the hook, and when the run has ended"

TABLE = FamilyTable("run", absent=ABSENT, importance=Importance.RUN)
HOOKED = TABLE.gauge("run_ranks_hooked", "Ranks on this node that have the hook.")
LEAST = TABLE.gauge(
    "run_step_min",
    "Step of the rank on this node that is least far: who is behind for long keeps the others waiting.",
    absent="before the first step, and while no rank of the run has the hook",
)
MOST = TABLE.gauge(
    "run_step_max", "Step of the rank on this node that is furthest.", absent=LEAST.absent
)
PHASE = TABLE.gauge(
    "run_ranks_by_phase",
    "Ranks on this node by what they do besides stepping, at the last look; `other` are phases that the job has named itself.",
    "phase",
    importance=Importance.DETAIL,
)
VALUE = TABLE.gauge(
    "run_scalar",
    "Values of the last step that the lowest rank on this node told: mldebug_training.heartbeat(step, loss=…); at most 16.",
    "name",
    absent="while no rank tells any, and what is not finite",
    importance=Importance.DETAIL,
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """What the hook in the ranks of each run reports; none for runs without the hook."""
    for run in snapshot.runs:
        if run.hooks:
            yield from _samples(run)


def _samples(run: RunState) -> Iterator[Sample]:
    hooks = [run.hooks[rank] for rank in sorted(run.hooks)]
    yield Sample(HOOKED, (run.id,), len(hooks))
    steps = [hook.step for hook in hooks if hook.step is not None]
    if steps:
        yield Sample(LEAST, (run.id,), min(steps))
        yield Sample(MOST, (run.id,), max(steps))
    phases = Counter(_phase(one.phase) for one in hooks if one.phase)
    for phase in (*PHASES, OTHER):
        yield Sample(PHASE, (run.id, phase), phases[phase])
    values = next((one.scalars for one in hooks if one.scalars), {})
    for name, value in sorted(values.items()):
        yield Sample(VALUE, (run.id, name), value)


def _phase(name: str) -> str:
    return name if name in PHASES else OTHER


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `hooks`: what the ranks' own hooks tell (`mldebug run`): how far each is, what they do besides stepping, values of their steps."""
    return MetricGroup(TABLE.families, samples)
