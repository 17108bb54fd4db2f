"""Joins stretches of samples to rows, and two rows to one finding. Pure."""

from mldebug.goodput.straggler import SampledStretch, Slowness, agreed, find_slow_ranks, needs_more


class SampleRows:
    """The stretches of one attempt of a run, taken one after another: 3 to 8 make a row, and a first slow rank has to be confirmed by
    a second row.
    """

    def __init__(self) -> None:
        self._row: list[SampledStretch] = []
        self._first: Slowness | None = None  # a row with a slow rank, to be confirmed by a second

    def add(self, stretch: SampledStretch, *, known: bool) -> Slowness | None:
        """Add the newest stretch. Returns what the row shows, or None where another stretch is wanted soon.

        `known`: the run has been found slow before, so that one row is enough.
        """
        self._row.append(stretch)
        if needs_more(self._row):
            return None
        found, self._row = find_slow_ranks(self._row), []
        first, self._first = self._first, None
        if first is not None:
            return agreed(first, found)
        if found.ranks and not known:
            self._first = found
            return None
        return found

    def drop(self) -> None:
        """Forget all stretches: they are not of one kind any more."""
        self._row, self._first = [], None
