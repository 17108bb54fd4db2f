"""How ranks of a run have exited, as far as it is known: kept on disk over a restart of the agent, and added to what each reading of
the run's processes finds, where ranks that have exited are missing.

Pure functions, except `launcher_lives`.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from mldebug.core.model import Job, LostRank, RankIdentity
from mldebug.diagnosis.exits.model import AttemptExit, KnownExits, LauncherWords, RankExit
from mldebug.stall.signals import RunLook
from mldebug_agents.system.host import Host
from mldebug_agents.system.procfs import exit_reason

MAX_RANKS = 1024  # of one run, that are kept


def known_exits_of(
    identities: Mapping[int, RankIdentity],
    exits: Mapping[int, RankExit],
    failing: Job | None = None,
) -> KnownExits:
    """The exits in the form in which they are stored: at most `MAX_RANKS` ranks, those that have
    ended first, and without command lines, which are long.

    `failing`: the job, where a failure is not judged yet.
    """
    order = sorted(identities, key=lambda rank: (rank not in exits, rank))[:MAX_RANKS]
    kept = (msgspec.structs.replace(identities[rank], argv=()) for rank in order)
    return KnownExits(
        identities=tuple(kept),
        exits=tuple(exits[rank] for rank in order if rank in exits),
        failing=failing and msgspec.structs.replace(failing, ranks=(), lost=()),
    )


def past(exits: Iterable[RankExit]) -> Iterator[RankExit]:
    """The exits that an earlier agent stored, numbered so that they come before all exits that this
    agent sees, in their own order.
    """
    stored = list(exits)
    last = max((one.moment or 0 for one in stored), default=0)
    for one in stored:
        moment = None if one.moment is None else one.moment - last - 1
        yield msgspec.structs.replace(one, moment=moment)


def with_exits(job: Job, look: RunLook, exits: Mapping[int, RankExit]) -> tuple[Job, RunLook]:
    """The job and the look with the known exits added.

    The search for ranks does not find ranks that were reaped, nor, after a restart of the agent,
    that they ever lived.
    """
    here = {rank.rank for rank in job.ranks}
    gone = {rank: one for rank, one in exits.items() if rank not in here}
    lost = {one.rank: one for one in job.lost}
    lost |= {rank: _lost(lost.get(rank), one) for rank, one in gone.items()}
    job = msgspec.structs.replace(job, lost=tuple(lost[rank] for rank in sorted(lost)))
    exited = tuple(sorted({*look.exited, *gone}))
    missing = tuple(rank for rank in look.missing if rank not in gone)
    return job, msgspec.structs.replace(look, exited=exited, missing=missing)


def _lost(lost: LostRank | None, gone: RankExit) -> LostRank:
    lost = lost or LostRank(rank=gone.rank)
    if lost.exit_status is not None or gone.status is None:
        return msgspec.structs.replace(lost, pid=lost.pid or gone.pid)
    return msgspec.structs.replace(
        lost, pid=gone.pid, exit_status=gone.status, reason=exit_reason(gone.status)
    )


def joined_exits(before: AttemptExit, now: AttemptExit) -> AttemptExit:
    """The evidence of one exit from two agents, joined.

    The second (`now`) could not read what was written before it started.
    """
    mine, its = now.words, before.words
    words = LauncherWords(
        failures=mine.failures or its.failures,
        followers=mine.followers or its.followers,
        ended=tuple(sorted({*its.ended, *mine.ended})),
        outside=mine.outside or its.outside,
        out_of_memory=mine.out_of_memory or its.out_of_memory,
        errors=its.errors | mine.errors,
        cited=mine.cited or its.cited,
    )
    return msgspec.structs.replace(
        now,
        words=words,
        errors=before.errors | now.errors,
        flights=before.flights | now.flights,
        traces=before.traces | now.traces,
        shared_error=now.shared_error or before.shared_error,
        deaths=tuple({one.pid: one for one in (*before.deaths, *now.deaths)}.values()),
        children=before.children | now.children,
        logs=before.logs | now.logs,
        log=now.log or before.log,
        log_path=now.log_path or before.log_path,
        log_paths=before.log_paths | now.log_paths,
        told_to_stop=now.told_to_stop or before.told_to_stop,
    )


def launcher_lives(host: Host, attempt: AttemptExit, same_boot: bool | None = None) -> bool:
    """Whether the launcher of a failed attempt still runs, so that another attempt may come.

    A later process with the same pid is recognised by its start: the launcher is older than its ranks.
    `same_boot`: the node has not been rebooted since; None: unknown, then clock times decide, which
    are wrong if somebody has set the clock.
    """
    pid = None if attempt.launcher_gone else attempt.job.launcher_pid
    stat = host.brief(pid) if pid else None
    if stat is None or stat.state in "ZX" or not attempt.identities:
        return False
    first = min(attempt.identities, key=lambda one: one.start_ticks)
    if same_boot is None:
        same_boot = abs(host.started_at(first.start_ticks) - first.started_at) < 60.0
    return same_boot and stat.start_ticks <= first.start_ticks
