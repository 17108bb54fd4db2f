"""Checks all checkpoints below a folder once, and says which are whole, without an agent."""

from collections.abc import Sequence
from posixpath import basename, join

import msgspec

from mldebug.storage.checkpoints.history import CheckpointSeries, printable
from mldebug.storage.checkpoints.model import Completeness, Layout
from mldebug.storage.checkpoints.names import checkpoint_of, is_part
from mldebug.storage.checkpoints.state import SeriesState, series_state
from mldebug_agents.storage.checkpoints.reader import series_key
from mldebug_agents.storage.checkpoints.series_reader import (
    SeriesFiles,
    SeriesKey,
    SeriesReader,
    troubles_of,
)
from mldebug_agents.system.child.job_paths import OPERATOR
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable

DEEP, MOST = 10, 50_000  # levels and entries below the folder


def read_checkpoints(
    reader: Reader, folder: str, layouts: Sequence[Layout], now: float
) -> tuple[tuple[SeriesState, ...], str]:
    """The checkpoint series in a folder (or the checkpoint that the folder itself is), and a sentence on why there may be more of them; "" where all were found.

    `folder`: an absolute path, read with the rights of the user who runs this. `now`: unix time. The series with the newest checkpoint is first.
    """
    files = SeriesFiles(reader, "", folder, OPERATOR)
    listed = files.list_folder(folder, depth=DEEP, most=MOST)
    if isinstance(listed, Unreadable):
        return (), listed.reason
    inside = (
        one.path for one in listed.entries if one.kind == "file" and is_part(basename(one.path))
    )
    places = {place for path in inside if (place := checkpoint_of(join(folder, path)))}
    single = next((place.name for place in places if _is_in(folder, join(*place))), "")
    keys = sorted({series_key(place) for place in places})
    found = (_state(key, reader, layouts, now, single) for key in keys)
    states = [state for state in found if state.listed or not single]
    states.sort(key=lambda state: -max((one.ended for one in state.listed), default=0.0))
    return tuple(states), next((trouble.why for trouble in troubles_of(listed)), "")


def _state(
    key: SeriesKey, reader: Reader, layouts: Sequence[Layout], now: float, single: str
) -> SeriesState:
    """The series; with `single` that checkpoint alone, which all others were compared with."""
    series = CheckpointSeries()
    files = SeriesFiles(reader, "", key[0], OPERATOR)
    look = SeriesReader(key, layouts).look("", files, frozenset(), now)
    series.look(now, look.readings, whole=look.whole)
    state = series_state(series, ("", *key), now, trouble=look.trouble, gaps=look.gaps)
    if not single:
        return state
    listed = tuple(known for known in series.checkpoints if known.name == printable(single))
    last = next((known for known in listed if known.state is Completeness.COMPLETE), None)
    counts = {str(known.state): 1 for known in listed}
    return msgspec.structs.replace(state, listed=listed, last=last, counts=counts)


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
