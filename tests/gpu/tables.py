"""Tables and numbers of the page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Found = Mapping[str, Any]  # what a part has found


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """A table of Markdown."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell(one) for one in row)} |"


def cell(value: object) -> str:
    """One value in a table; nothing for what is not known."""
    if value is None:
        return ""
    text = number(value) if isinstance(value, int | float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def number(value: float) -> str:
    """`1980000000.0` as 1.98e9, `0.123456` as 0.1235."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if float(value).is_integer() and abs(value) < 1e5:
        return str(int(value))
    if abs(value) >= 1e5:
        figures, _, power = f"{value:.6g}".partition("e+")
        return f"{figures}e{int(power)}" if power else figures
    return f"{value:.4g}"


def three(values: Sequence[float]) -> str:
    """`3.1 (3.4, 9.0)`: median, ninth decile, longest."""
    return f"{values[0]:.2f} ({values[1]:.2f}, {values[2]:.2f})" if values else ""
