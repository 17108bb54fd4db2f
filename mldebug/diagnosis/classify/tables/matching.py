"""Finds the row of the classification table that a stack fits."""

from functools import lru_cache

from mldebug.capture.frames import bare
from mldebug.core.model import Frame
from mldebug.diagnosis.classify.tables.python_calls import IDLE_CALLS, PYTHON
from mldebug.diagnosis.classify.tables.signs import FrameSign

Match = tuple[FrameSign, str]  # the row, and the operation that is waited in
_LOADS_ITSELF = "torch/utils/data/_utils/fetch.py"  # a DataLoader without workers


def match_calls(region: tuple[Frame, ...], *, runs_python: bool = False) -> Match | None:
    """The first table row that a frame of `region` matches, and the operation: the row's own, or the name of the outermost call that matches.

    None: no row.

    `region`: the frames that the job's line has called, innermost first. `runs_python`: the thread
    holds the GIL, so rows that need a blocking innermost frame do not match.
    """
    rows = [_rows_of(frame.path, frame.file, frame.function) for frame in region]
    first = min((r for n, found in enumerate(rows) if found for r in found if not PYTHON[r].top or (n == 0 and not runs_python)), default=None)  # fmt: skip
    if first is None:
        return None
    row = PYTHON[first]
    if row.name == "dataloader" and any(frame.file.endswith(_LOADS_ITSELF) for frame in region):
        return None
    hits = [frame for frame, found in zip(region, rows, strict=True) if first in found]
    return row, row.operation or bare(hits[0 if row.top else -1])


def match_idle(region: tuple[Frame, ...]) -> FrameSign | None:
    """The table row for what an idle thread waits for; None: no row.

    Its phrase does not name the place in the code.
    """
    calls = [(frame.file if "/" in frame.file else frame.path or frame.file, bare(frame)) for frame in region]  # fmt: skip
    return next((row for row in IDLE_CALLS for file, name in calls if row.file.fullmatch(file) and row.function.fullmatch(name)), None)  # fmt: skip


@lru_cache(maxsize=4096)
def _rows_of(path: str, file: str, function: str) -> tuple[int, ...]:
    """The rows that this call fits; thousands of ranks stand in a few dozen calls."""
    where = file if "/" in file else path or file  # a tool may show no more than its last part
    name = function.rpartition(".")[2]
    return tuple(n for n, row in enumerate(PYTHON) if row.file.fullmatch(where) and row.function.fullmatch(name))  # fmt: skip
