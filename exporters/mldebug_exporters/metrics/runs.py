"""Training runs on this node: progress, ranks by class, stage of suspicion."""

from collections import Counter
from collections.abc import Iterator

import msgspec
from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily, Metric

from mldebug.snapshot import Snapshot
from mldebug.stall.signals import Stage


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class RunMetrics:
    """One sample per run and fact that can be read."""

    def families(self, snapshot: Snapshot) -> Iterator[Metric]:
        """What is known of each run; a sample is absent where it cannot be read."""
        info = InfoMetricFamily("mldebug_run", "A training run on this node.", labels=["run"])
        up = GaugeMetricFamily(
            "mldebug_run_up", "1 while the run moves, 0 while an incident is open.", labels=["run"]
        )
        quiet = GaugeMetricFamily(
            "mldebug_run_progress_age_seconds",
            "Seconds since the run made progress.",
            labels=["run"],
        )
        limit = GaugeMetricFamily(
            "mldebug_run_stall_timeout_seconds", "Silence that counts as a stall.", labels=["run"]
        )
        ranks = GaugeMetricFamily(
            "mldebug_run_ranks", "Ranks with a process on this node.", labels=["run"]
        )
        lost = GaugeMetricFamily(
            "mldebug_run_ranks_lost", "Ranks that should be here and are gone.", labels=["run"]
        )
        step = GaugeMetricFamily(
            "mldebug_run_step", "Last step that the run's log told.", labels=["run"]
        )
        loss = GaugeMetricFamily(
            "mldebug_run_loss", "Last loss that the run's log told.", labels=["run"]
        )
        pace = GaugeMetricFamily(
            "mldebug_run_step_seconds", "Last step time that the run's log told.", labels=["run"]
        )
        stage = GaugeMetricFamily(
            "mldebug_run_stage",
            "State set: how far the suspicion has come.",
            labels=["run", "stage"],
        )
        classes = GaugeMetricFamily(
            "mldebug_run_ranks_by_class",
            "Ranks by class at the last sample.",
            labels=["run", "class"],
        )
        for run in snapshot.runs:
            info.add_metric(
                [run.id], {"name": run.name, "launcher": run.launcher, "user": run.user}
            )
            up.add_metric([run.id], 0.0 if run.incident else 1.0)
            quiet.add_metric([run.id], run.quiet_seconds)
            limit.add_metric([run.id], run.timeout_seconds)
            ranks.add_metric([run.id], len(run.ranks))
            lost.add_metric([run.id], len(run.lost))
            for family, value in ((step, run.step), (loss, run.loss), (pace, run.step_seconds)):
                if value is not None:
                    family.add_metric([run.id], value)
            for one in Stage:
                stage.add_metric([run.id, one], 1.0 if run.stage == one else 0.0)
            for name, count in Counter(run.classes.values()).items():
                classes.add_metric([run.id, name], count)
        yield from (info, up, quiet, limit, ranks, lost, step, loss, pace, stage, classes)


def create(options: Options) -> RunMetrics:
    """Build the metric families."""
    return RunMetrics()
