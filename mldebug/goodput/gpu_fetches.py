"""Lines of a job's own code in which a rank waits for its GPU, though no Python frame below shows it: `loss.item()`.

Such a call is one of PyTorch's C++ functions, so that the innermost Python frame is the line itself. It returns when all that the
GPU was given before is done, collectives included: of a rank whose peers are late, most samples find it there.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from mldebug.capture.folded_stacks import CountedStack
from mldebug.capture.frames import owner_of, python_frames
from mldebug.capture.packages import Owner

MOST = 8  # lines of one rank that are read
_FETCH = re.compile(r"\.(?:item|tolist|cpu|numpy)\(\s*\)|\bsynchronize\(|\.to\(\s*[\"']cpu[\"']")


class CodeLine(NamedTuple):
    """A line of a source file, as the process names the file."""

    path: str
    line: int


def usual_lines(stacks: Sequence[CountedStack]) -> tuple[CodeLine, ...]:
    """The lines of the job's own code that were found as the innermost frame most often, at most `MOST`, each in a twentieth of all
    samples or more.
    """
    found: Counter[CodeLine] = Counter()
    for one in stacks:
        frames = python_frames(one.stack.frames)
        if frames and frames[0].path and owner_of(frames[0]) is Owner.JOB:
            found[CodeLine(frames[0].path, frames[0].line)] += one.count
    least = sum(one.count for one in stacks) / 20
    return tuple(line for line, count in found.most_common(MOST) if count >= least)


def is_fetch(source: str) -> bool:
    """Whether this line of source code takes a value off the GPU, and so waits for it. `print(loss)` and `if loss > 3` do so, too, but
    their text does not show it.
    """
    return _FETCH.search(source.partition("#")[0]) is not None
