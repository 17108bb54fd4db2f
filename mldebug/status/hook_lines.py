"""What the hooks of a run's ranks say, in a few words for one line: who is behind, and who does something besides stepping."""

from collections.abc import Iterator

from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.jobs.heartbeat import phase_words
from mldebug.status.snapshot import RunState

MAX_PHASES = 4
LEAST_AGE = 1.0  # seconds: the wait for the next batch is a phase of each step


def said_words(run: RunState) -> Iterator[str]:
    """`rank 2 at step 40 of 43`, `ranks 0-3 in checkpoint_save for 35 s`; nothing for an untouched job."""
    yield from _behind(run)
    yield from _phases(run)
    if run.said and len(run.said) < len(run.ranks):
        yield f"hook in {len(run.said)} of {len(run.ranks)} ranks"


def _behind(run: RunState) -> Iterator[str]:
    """Those that are least far, where not all are equally far. One step apart is how ranks walk."""
    steps = {rank: one.step for rank, one in run.said.items() if one.step is not None}
    least, most = min(steps.values(), default=0), max(steps.values(), default=0)
    if most - least > 1:
        yield f"{_ranks([rank for rank, step in steps.items() if step == least])} at step {least} of {most}"


def _phases(run: RunState) -> Iterator[str]:
    told = {rank: one for rank, one in run.said.items() if one.phase and one.phase_age >= LEAST_AGE}
    for phase in sorted({one.phase for one in told.values()})[:MAX_PHASES]:
        ages = {rank: one.phase_age for rank, one in told.items() if one.phase == phase}
        yield f"{_ranks(list(ages))} {phase_words(phase, max(ages.values()))}"


def _ranks(ranks: list[int]) -> str:
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {shorten_ranks(fold_ranks(ranks), 40)}"
