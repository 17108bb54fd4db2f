"""What the ranks' own hooks tell (`mldebug run`): how far each is, what they do besides stepping, values of their steps."""

from collections import Counter
from collections.abc import Iterator

import msgspec

from mldebug.snapshot import RunState, Snapshot
from mldebug_exporters.exposition.families import Family, Importance, Sample

PHASES = ("checkpoint_save", "checkpoint_load", "compile", "data_wait", "evaluate")
OTHER = "other"  # a job may give its phases any name
ABSENT = "while no rank of the run has the hook, and when the run has ended"


def _family(name: str, told: str, absent: str, *labels: str) -> Family:
    return Family(
        name=f"mldebug_run_{name}",
        kind="gauge",
        help=told,
        labels=("run", *labels),
        absent=absent,
        importance=Importance.DETAIL if labels else Importance.RUN,
    )


HOOKED = _family("ranks_hooked", "Ranks on this node that have the hook.", ABSENT)
LEAST = _family(
    "step_min",
    "Step of the rank on this node that is least far: who is behind for long keeps the others waiting.",
    "before the first step, and while no rank of the run has the hook",
)
MOST = _family("step_max", "Step of the rank on this node that is furthest.", LEAST.absent)
PHASE = _family(
    "ranks_by_phase",
    "Ranks on this node by what they do besides stepping, at the last look; `other` are phases that the job has named itself.",
    ABSENT,
    "phase",
)
VALUE = _family(
    "scalar",
    "Values of the last step that the lowest rank on this node told: mldebug_training.heartbeat(step, loss=…); at most 16.",
    "while no rank tells any, and what is not finite",
    "name",
)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class HookMetrics:
    """A few samples for each run with a hook, however many ranks it has."""

    families = (HOOKED, LEAST, MOST, PHASE, VALUE)

    def samples(self, snapshot: Snapshot) -> Iterator[Sample]:
        """Nothing of an untouched job."""
        for run in snapshot.runs:
            if run.said:
                yield from _samples(run)


def _samples(run: RunState) -> Iterator[Sample]:
    told = [run.said[rank] for rank in sorted(run.said)]
    yield Sample(HOOKED, (run.id,), len(told))
    steps = [one.step for one in told if one.step is not None]
    if steps:
        yield Sample(LEAST, (run.id,), min(steps))
        yield Sample(MOST, (run.id,), max(steps))
    phases = Counter(_phase(one.phase) for one in told if one.phase)
    for phase in (*PHASES, OTHER):
        yield Sample(PHASE, (run.id, phase), phases[phase])
    values = next((one.scalars for one in told if one.scalars), {})
    for name, value in sorted(values.items()):
        yield Sample(VALUE, (run.id, name), value)


def _phase(told: str) -> str:
    return told if told in PHASES else OTHER


def create(options: Options) -> HookMetrics:
    """Build the group."""
    return HookMetrics()
