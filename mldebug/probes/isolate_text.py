"""The answer of `probe isolate` in lines. Pure."""

from collections.abc import Iterator, Sequence

from mldebug.probes.isolate import Isolation
from mldebug.probes.pairs import rate
from mldebug.probes.trials import Trial

MAX_LINES = 12


def progress(number: int, trials: Sequence[Trial]) -> Iterator[str]:
    """What one step gave."""
    for one in trials:
        told = rate(one.bandwidth) if one.bandwidth is not None else one.outcome
        how = "fine" if told == "measured" else told.replace("_", " ")
        reason = f" ({one.reason})" if one.reason else ""
        who = " - ".join(one.members) if len(one.members) < 3 else f"all {len(one.members)}"
        yield f"step {number}: {who}: {how}{reason}"


def lines(answer: Isolation) -> Iterator[str]:
    """The sentence, the evidence, and what is not sure."""
    yield answer.sentence
    for one in answer.culprits:
        yield f"  {' - '.join(one.members)}: {one.evidence}"
    for head, some in (("cannot be told apart", answer.suspects), ("unsure", answer.unsure)):
        for text in some[:MAX_LINES]:
            yield f"  {head}: {text}"
        if len(some) > MAX_LINES:
            yield f"  {head}: {len(some) - MAX_LINES} more"
