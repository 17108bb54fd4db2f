"""What a node says of its runs: of those that live, and of those of which nothing is left but their bad end."""

import time

from mldebug.cluster.messages import End, RunNews, spoken
from mldebug.cluster.run_identity import job_key
from mldebug.core.ranksets import fold_ranks
from mldebug.incidents.incident import is_untold
from mldebug_agents.cluster.peers.remote_progress import FarProgress
from mldebug_agents.incidents.recent_failures import BadEnd
from mldebug_agents.watch.runs import Run


def news_of(run: Run, node: str, progress: FarProgress, bad: BadEnd | None, now: float) -> RunNews:
    """A run that has ranks here. `bad`: others of them have ended badly."""
    job, told = run.job, run.decision
    stall = run.incident if run.incident and run.incident.kind == "stall" else None
    return RunNews(
        key=job_key(job, node),
        name=job.name,
        attempt=job.attempt,
        world_size=job.world_size,
        age=max(0.0, time.time() - job.started_at) if job.started_at else 0.0,
        ranks=fold_ranks(rank.rank for rank in job.ranks),
        step=run.seen.step if run.seen else None,
        stage=str(told.stage) if told else "watching",
        sentence=told.sentence if told else "",
        signals=progress.own(now),
        incident=stall.id if stall else bad.incident.id if bad else "",
        told=stall is not None and (stall.shared or not is_untold(stall)),
        end=_end(bad) if bad else None,
        node_list=job.node_list,
    )


def gone(bad: BadEnd, node: str) -> RunNews:
    """A run of which no rank is left here."""
    job = bad.run.job
    return RunNews(
        key=job_key(job, node),
        name=job.name,
        attempt=job.attempt,
        world_size=job.world_size,
        stage="ended",
        sentence=bad.diagnosis.summary,
        end=_end(bad),
    )


def _end(bad: BadEnd) -> End:
    age = max(0.0, time.monotonic() - bad.at)
    return End(incident=bad.incident.id, diagnosis=spoken(bad.diagnosis), age=age)
