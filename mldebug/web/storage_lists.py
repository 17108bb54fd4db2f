"""Storage as lists for a page: the words of `mldebug status --storage`, taken apart. Pure."""

import math
from collections.abc import Collection, Iterator

import msgspec

from mldebug.core.redact import clean
from mldebug.storage.filesystems.state import CollectorState, Row, StorageState

MOST = 1024  # rows of one list
WIDEST = 300
MOST_TIMES = 100.0  # a ratio that is larger says no more
ORDER = (
    "filesystems",
    "quotas",
    "trees",
    "latency",
    "test_reads",
    "writers",
    "test_writes",
)  # others follow
NAMES = ("title", "quota", "path")  # the key that an alarm names as its subject


class ListItem(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a list, with a bar where it has a ratio."""

    title: str
    words: str
    css_class: str = "good"
    aside: str = ""
    ahead: str = ""  # the forecast
    ratio: float | None = None


class ItemGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The rows under one heading of `mldebug status --storage`."""

    name: str
    title: str
    items: tuple[ListItem, ...]
    more: int = 0


def groups(storage: StorageState) -> Iterator[ItemGroup]:
    """One group for each heading; unknown headings come last, under their own names."""
    wrong = {(part.name, one.subject) for part in storage.parts for one in part.alarms}
    stuck = {one.subject for one in storage.alarms if "stuck" in one.kind}
    found: dict[str, list[ListItem]] = {}
    for part in storage.parts:
        bad = {subject for name, subject in wrong if name == part.name}
        for heading, items in _items(part, bad, stuck):
            found.setdefault(heading, []).extend(items)
    for heading in (*(one for one in ORDER if one in found), *(one for one in found if one not in ORDER)):  # fmt: skip
        items = found[heading]
        title = clean(heading.replace("_", " ").capitalize(), 60)
        more = max(0, len(items) - MOST)
        yield ItemGroup(name=heading, title=title, items=tuple(items[:MOST]), more=more)


def _items(
    part: CollectorState, bad: Collection[str], stuck: Collection[str]
) -> Iterator[tuple[str, list[ListItem]]]:
    """What hangs, what is wrong, then in the part's own order."""
    for heading, rows in part.rows.items():
        order = sorted(rows, key=lambda row: (_name(row) not in stuck, _name(row) not in bad))
        yield heading, [_item(row, bad) for row in order]


def _item(row: Row, bad: Collection[str]) -> ListItem:
    name, line, ahead = _name(row), str(row.get("line") or ""), str(row.get("forecast") or "")
    words = line.removeprefix("of ").removeprefix(f"{name}: ") if name else line
    unknown = bool(row.get("reason")) or bool(row.get("lower_bound"))
    return ListItem(
        title=clean(name, 160),
        words=clean(words.removesuffix(f"; {ahead}") if ahead else words, WIDEST),
        css_class="bad" if name in bad else "quiet" if unknown else "good",
        aside=", ".join(_asides(row)),
        ahead=clean(ahead, 120),
        ratio=share(row.get("used_ratio")),
    )


def share(value: object) -> float | None:
    """A row's ratio, if it is a number that a bar can show (0 or more, cut at `MOST_TIMES`); else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return min(float(value), MOST_TIMES) if math.isfinite(value) and value >= 0 else None


def _name(row: Row) -> str:
    return next((str(row[key]) for key in NAMES if row.get(key)), "")


def _asides(row: Row) -> Iterator[str]:
    if row.get("fstype"):
        yield clean(str(row["fstype"]), 20)
    if isinstance(ranks := row.get("ranks"), int) and ranks:
        yield f"{ranks:,} {'rank uses' if ranks == 1 else 'ranks use'} it"
