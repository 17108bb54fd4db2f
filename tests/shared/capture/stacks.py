"""A text of stacks as tests compare it: the threads of each process by pid."""

from mldebug.capture.stacks.reader import read_text
from mldebug.core.model import ThreadStack


def parse_pyspy_text(text: str) -> dict[int, tuple[ThreadStack, ...]]:
    """The threads of each process in a text of stacks, by pid (0: none is named there)."""
    return {one.pid: one.stacks for one in read_text(text).processes}
