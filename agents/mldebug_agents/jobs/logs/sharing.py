"""Which runs write which log: what two write tells of neither, for nobody can say whose step a line tells."""

from collections.abc import Collection

import msgspec

File = tuple[int, int]  # device, inode


class _Run(msgspec.Struct, frozen=True):
    files: frozenset[File]
    lone: bool


class Writers:
    """The log files of all runs of a node. Use it in one thread."""

    def __init__(self) -> None:
        self._runs: dict[object, _Run] = {}

    def keep(self, runs: Collection[object]) -> None:
        """Forget all runs but these."""
        self._runs = {run: told for run, told in self._runs.items() if run in runs}

    def note(self, run: object, files: Collection[File], *, lone: bool) -> None:
        """These are the logs of a run now; `lone`: one process without a launcher, which may be no training."""
        self._runs[run] = _Run(frozenset(files), lone)

    def shared(self, run: object, file: File | None) -> bool:
        """Whether another run writes it too. A lone process spoils only the log of another lone one."""
        mine = self._runs.get(run)
        others = [told for it, told in self._runs.items() if it is not run]
        return mine is not None and any(
            file in told.files and (mine.lone or not told.lone) for told in others
        )
