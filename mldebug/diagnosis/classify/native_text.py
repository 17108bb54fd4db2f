"""A native stack in one line: where a library has no names, the library itself and how many frames it is. Pure."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from mldebug.core.model import Frame

SHOWN = 4  # parts of the line
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_NOWHERE = ("", "?")


def native_words(frames: Iterable[Frame], decides: str) -> str:
    """`libcuda.so.580.159.04 (9 frames without names) < cuStreamSynchronize`, innermost first.

    `decides`: the function that the verdict rests on; it stands there however far out it is. A bare address of no
    library tells nothing and is left out.
    """
    parts = list(_parts(frames))
    if decides in parts[:SHOWN]:
        return " < ".join(parts[:SHOWN])
    return " < ".join((*parts[: SHOWN - 2], "…", decides))


def _parts(frames: Iterable[Frame]) -> Iterator[str]:
    for (function, library), some in groupby(frames, key=_named):
        many = sum(1 for _ in some)
        if function:
            yield from (function,) * many
        elif library not in _NOWHERE:
            told = f"{many} frames without names" if many > 1 else "a frame without a name"
            yield f"{library} ({told})"


def _named(frame: Frame) -> tuple[str, str]:
    """The function, or where it has no name, the library."""
    bare = frame.native and _ADDRESS.fullmatch(frame.function)
    return ("", frame.file) if bare else (frame.function, "")
