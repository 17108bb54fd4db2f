"""Whose rights a test reads with: the user's who runs it."""

import os

from mldebug_agents.storage.checkpoints.series_reader import SeriesFiles
from mldebug_agents.system.child.job_paths import Rights
from mldebug_agents.system.reader import Reader

MINE = Rights(
    os.geteuid(), os.getegid(), tuple(os.getgroups()), os.getpid(), everything=os.geteuid() == 0
)


def of_mine(reader: Reader) -> SeriesFiles:
    """Any folder, as that user sees it."""
    return SeriesFiles(reader, "", "", MINE)
