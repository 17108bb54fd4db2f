"""Which files source text may be taken from, and one line of such a text. A ring names any file it likes."""

MAX_LINE = 400  # characters
MAX_PATH = 1024


def is_source(path: str) -> bool:
    """A Python file with a whole path: what else a ring names is nobody's source."""
    return (
        path.startswith("/") and path.endswith(".py") and len(path) <= MAX_PATH and "\0" not in path
    )


def nth_line(text: bytes, line: int) -> str:
    """The line of that number, from 1, without its end; "" where there is none."""
    rows = text.split(b"\n", line)
    return rows[line - 1].decode("utf-8", "replace")[:MAX_LINE] if 0 < line <= len(rows) else ""
