"""Figures of training that a run's log tells, and the events that were found in them."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.goodput.scalars.model import EventKind
from mldebug.status.snapshot import RunState, Snapshot
from mldebug_exporters.exposition.families import FamilyTable, Importance, MetricGroup, Sample

TABLE = FamilyTable(
    "run",
    absent="until the run's log or hook tells one, while it is not finite, and when the run has ended",
    importance=Importance.DETAIL,
)
FIGURES = {
    "grad_norm": TABLE.gauge("run_grad_norm", "Last norm of the gradients that the run told."),
    "learning_rate": TABLE.gauge("run_learning_rate", "Last learning rate that the run told."),
    "tokens_per_second": TABLE.gauge("run_tokens_per_second", "Last throughput in tokens that the run told, of all or of one GPU: as its log counts."),
    "tokens_per_second_per_gpu": TABLE.gauge("run_tokens_per_second_per_gpu", "Last throughput of one GPU in tokens that the run told."),
    "samples_per_second": TABLE.gauge("run_samples_per_second", "Last throughput in samples that the run told."),
    "tflops": TABLE.gauge("run_tflops", "Last TFLOP/s that the run told, of one GPU or of all: as its log counts."),
    "mfu": TABLE.gauge("run_mfu_ratio", "Last model FLOPs utilization that the run told, 0 to 1; above 1.5 the log's value is taken for percent."),
    "memory": TABLE.gauge("run_logged_memory", "Last GPU memory that the run told, in the unit of its log."),
    "loss_scale": TABLE.gauge("run_loss_scale", "Last loss scale that the run told."),
    "skipped_iterations": TABLE.gauge("run_skipped_iterations", "Last count of skipped iterations that the run told."),
    "nan_iterations": TABLE.gauge("run_nan_iterations", "Last count of iterations with NaN that the run told."),
    "batch_size": TABLE.gauge("run_batch_size", "Last batch size that the run told."),
}  # fmt: skip
PERCENT = 1.5  # an MFU above it is no ratio
EVENTS = FamilyTable(
    "run", absent="until the run told a figure, and when it has ended", importance=Importance.DETAIL
)
FOUND = EVENTS.counter(
    "run_training_events",
    "Events that were found in the figures of the run since the agent met it: see docs/goodput.md.",
    "kind",
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """The figures that each run's log has (loss, learning rate and so on), and how many events of each kind were found in them, zeros included."""
    counts = {history.run: history.counts for history in snapshot.histories}
    for run in snapshot.runs:
        yield from _figures(run)
        if run.id in counts:
            for kind in EventKind:
                yield Sample(FOUND, (run.id, kind.value), counts[run.id].get(kind, 0))


def _figures(run: RunState) -> Iterator[Sample]:
    for name, family in FIGURES.items():
        value = run.scalars.get(name)
        if value is not None:
            percent = name == "mfu" and value > PERCENT
            yield Sample(family, (run.id,), value / 100 if percent else value)


def create(options: NoOptions) -> MetricGroup:
    """Build the group of metrics `scalars`."""
    return MetricGroup((*TABLE.families, *EVENTS.families), samples)
