"""Schedulers and orphans as lines of `mldebug status`. Pure."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from mldebug.core.redact import safe_line
from mldebug.core.units import duration_words
from mldebug.jobs.schedulers.model import Orphan, SchedulerState

MOST = 8
GIB = 1 << 30


def scheduler_lines(states: Iterable[SchedulerState], now: float) -> Iterator[tuple[str, bool]]:
    """Lines about the schedulers for people, each with whether it is bad news. `now`: unix time."""
    for state in states:
        if not state.asks:
            yield f"{state.name}: another node's agent asks it", False
            continue
        if state.trouble:
            yield (
                f"{state.name} did not answer: {safe_line(state.trouble, 200)}{_old(state, now)}",
                True,
            )
        for one in state.watched:
            bad = one.missing or one.hidden or bool(one.blocked or one.near)
            yield f"{one.name}: {one.sentence}", bad
        if state.nodes:
            yield f"{state.name}: {_nodes(state)}", False


def orphan_words(one: Orphan) -> str:
    """An orphan process as one line: process, user, start, the job that it outlived, its GPUs, and how that is known. No part of
    it changes from second to second.
    """
    rank = f", rank {one.rank}" if one.rank else ""
    held = [amount for amount in one.gpu_bytes.values() if amount is not None]
    memory = f" ({sum(held) / GIB:.1f} GiB)" if held else ""
    gpus = f", holds {_count(len(one.gpu_bytes), 'GPU')}{memory}" if one.gpu_bytes else ""
    return (
        f"process {one.pid} ({safe_line(one.name, 40)}) of {one.user}, started {_moment(one.started_at)},"
        f" outlived {safe_line(one.job, 60)}{rank}{gpus}: {one.why}"
    )


def orphan_line(one: Orphan, now: float) -> str:
    """The line about an orphan process (see `orphan_words`), with how long it has been running. `now`: unix time."""
    return f"{orphan_words(one)}; it runs for {duration_words(max(0, int(now - one.started_at)))}"


def _nodes(state: SchedulerState) -> str:
    shown = ", ".join(
        f"{safe_line(node.name, 40)} is {node.state}"
        + (f" ({safe_line(node.reason, 60)})" if node.reason else "")
        for node in state.nodes[:MOST]
    )
    more = len(state.nodes) - MOST
    return f"{shown}, and {more} more" if more > 0 else shown


def _old(state: SchedulerState, now: float) -> str:
    if state.success_at is None:
        return ""
    return f"; it last did {duration_words(int(now - state.success_at))} ago"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' if number != 1 else ''}"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%MZ")
