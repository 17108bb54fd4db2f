"""What the logs of a run have said lately: only what was not said before is movement.

A monitor thread tells its own step again and again, several ranks tell the same one, a bar is redrawn: known numbers
are no news, in whatever order they come back. A loop that starts again from its beginning tells known numbers too:
that is news where it had climbed before. What an untold epoch and an untold loss leave open stays unknown: a loop of
less than `RISES` + 1 lines, always the same ones, tells nothing.
"""

from itertools import pairwise

from mldebug.jobs.logs.records import LogRecord

KEPT = 32  # different things said last; a hang has fewer, by however many threads
RISES = 3  # steps that a count must have climbed before it may start again
ECHO = 8  # steps by which one rank may be behind another

Count = tuple[str, int | None]  # format, total
Said = tuple[str, int | None, int | None, str, str, int]  # count, step, loss, place, mark


class Sayings:
    """What was said last, the oldest first."""

    def __init__(self) -> None:
        self._said: dict[Said, None] = {}
        self._lone: Said | None = None  # nothing but a loss or a duration: rounded, they come back
        self._aside: dict[Said, None] = {}  # without step and loss: how far an evaluation is

    def is_news(self, record: LogRecord) -> bool:
        """Take one record; say whether it tells anything that was not known."""
        said = _of(record)
        if record.step is None and not record.place:
            before, self._lone = self._lone, said
            return said != before
        if record.step is None and record.loss is None:
            return _add(said, self._aside)
        if said in self._said and self._starts_again(record):
            self._forget((record.format, record.total))
        news = _add(said, self._said)
        if news and self._aside:
            self._aside = {}  # the next evaluation counts like the last
        return news

    def _starts_again(self, record: LogRecord) -> bool:
        """Whether its count climbed, and fell to its beginning or by more than ranks are apart."""
        count, step = (record.format, record.total), record.step
        steps = [it[2] for it in self._said if it[:2] == count and it[2] is not None]
        if step is None or not steps or step >= steps[-1]:
            return False
        rises = sum(later > earlier for earlier, later in pairwise(steps))
        return rises >= RISES and (step <= 1 or steps[-1] - step > ECHO)

    def _forget(self, count: Count) -> None:
        self._said = {said: None for said in self._said if said[:2] != count}


def _add(said: Said, known: dict[Said, None]) -> bool:
    if said in known:
        return False
    known[said] = None
    if len(known) > KEPT:
        del known[next(iter(known))]
    return True


def _of(record: LogRecord) -> Said:
    """Losses are compared as text: no nan equals another. A duration counts where a line tells nothing else."""
    lone = record.step is None and record.loss is None
    told = record.step_seconds if lone else record.loss
    return record.format, record.total, record.step, str(told), record.place, record.mark
