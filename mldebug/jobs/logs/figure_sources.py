"""Of several counts in the logs of a run, the one from which each figure is taken.

A loop may show its loss twice (a bar of the epoch, and a line with the step of the whole run), each rank may write a log of its own, and
an evaluation without a name has a loss, too. Mixed, they look like spikes and steps back. So each figure comes from one source: the log,
format and words of its lines, and about how many steps they count to. It is the one with the most records; another one takes over
where that is silent. Pure.
"""

from collections.abc import Iterator

import msgspec

from mldebug.jobs.logs.records import LogRecord

OTHER_LOG = 60.0  # seconds of silence after which another log of the run may tell a figure
OTHER_LINE = 600.0  # the same for other lines of that log: so long an evaluation may last
MOST_SOURCES = 64  # of one figure
MOST_RECORDS = 1000  # that are counted
ALIKE = 1.25  # totals that differ less are of the same loop: its epochs may be of different lengths


class _Source:
    """Lines that tell one figure. `now`: monotonic seconds."""

    def __init__(self, record: LogRecord, log: object, now: float) -> None:
        self.log, self._lines, self._total = log, (record.format, record.shape), record.total
        self.count, self.newest_at = 0, now

    def owns(self, record: LogRecord, log: object) -> bool:
        """Whether this record of this log is one of the lines."""
        if log != self.log or self._lines != (record.format, record.shape):
            return False
        if not self._total or not record.total:
            return bool(self._total) == bool(record.total)
        return max(self._total, record.total) <= ALIKE * min(self._total, record.total)


class FigureSources:
    """From which lines of which log each figure of one run (its loss, its learning rate) is taken, where several tell it."""

    def __init__(self) -> None:
        self._sources: dict[str, list[_Source]] = {}  # by figure; the first of them counts

    def choose(self, record: LogRecord, log: object, now: float) -> LogRecord | None:
        """The record with those of its figures that count; None where none does. `log`: identifies the log within the run. `now`:
        monotonic seconds.
        """
        names = tuple(_figures(record))
        kept = {name for name in names if self._counts(name, record, log, now)}
        if len(kept) == len(names):
            return record if names else None
        if not kept:
            return None
        return msgspec.structs.replace(
            record,
            loss=record.loss if "loss" in kept else None,
            step_seconds=record.step_seconds if "step_seconds" in kept else None,
            scalars={name: value for name, value in record.scalars.items() if name in kept},
        )

    def forget(self) -> None:
        """Begin anew: other processes write the logs, or they may belong to another job."""
        self._sources.clear()

    def _counts(self, name: str, record: LogRecord, log: object, now: float) -> bool:
        sources = self._sources.setdefault(name, [])
        own = next((one for one in sources if one.owns(record, log)), None)
        if own is None:
            own = _Source(record, log, now)
            del sources[MOST_SOURCES - 1 :]
            sources.append(own)
        own.count, own.newest_at = min(MOST_RECORDS, own.count + 1), now
        first = sources[0]
        patience = OTHER_LINE if first.log == log else OTHER_LOG
        if own is not first and (own.count > first.count or now - first.newest_at >= patience):
            sources.remove(own)
            sources.insert(0, own)
        return own is sources[0]


def _figures(record: LogRecord) -> Iterator[str]:
    if record.loss is not None:
        yield "loss"
    if record.step_seconds is not None:
        yield "step_seconds"
    yield from record.scalars
