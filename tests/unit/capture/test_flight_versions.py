"""Dumps of PyTorch 2.3 to 2.13: fields came and went, and the same hang is told alike, also where ranks have different versions."""

import itertools
import pickle
from collections.abc import Callable
from typing import NamedTuple

import pytest

from mldebug.capture.flight_recorder.analysis import Conclusion, analyse
from mldebug.capture.flight_recorder.dump import parse_dump
from shared.capture.dumps import Dump, as_json, calls, dump

WORLD = range(4)


class Release(NamedTuple):
    """What a version of the dump lacks beside today's, in its calls and beside them, as its headers have it (TraceUtils.h, FlightRecorder.hpp)."""

    version: str
    calls: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    library: str = "nccl_version"


_THREAD = ("thread_id", "thread_name")
_FIRST = ("process_group", "collective_seq_id", "p2p_seq_id", "is_p2p", "input_dtypes", "output_dtypes")  # fmt: skip
RELEASES = {
    "2.3": Release("1.4", (*_THREAD, "timeout_ms", *_FIRST), ("pg_status", "comm_lib_version")),
    "2.4": Release("2.1", (*_THREAD, "timeout_ms"), ("pg_status", "comm_lib_version")),
    "2.5": Release("2.4", _THREAD, ("comm_lib_version",)),
    "2.8": Release("2.9"),
    "2.13": Release("2.10", library="comm_lib_version"),
}


def as_written_by(release: Release, today: Dump) -> Dump:
    """A dump of today in the fields of that release."""
    found = {name: value for name, value in today.items() if name not in release.beside}
    if "comm_lib_version" in found:
        found[release.library] = found.pop("comm_lib_version")
    found["version"] = release.version
    found["entries"] = [_call(release, one) for one in today["entries"]]
    return found


def _call(release: Release, call: Dump) -> Dump:
    found = {name: value for name, value in call.items() if name not in release.calls}
    if "collective_seq_id" in release.calls:
        found["seq_id"] = call["collective_seq_id"]
    return found


def behind(rank: int) -> Dump:
    """Rank 2 has not called all_reduce 9."""
    return dump(calls(8 if rank == 2 else 9, last="completed" if rank == 2 else "scheduled"))


def ended(rank: int) -> Dump:
    """all_reduce 9 has ended on all but rank 2."""
    return dump(calls(9, last="scheduled" if rank == 2 else "completed"))


def frozen(rank: int) -> Dump:
    """All are in all_reduce 9."""
    return dump(calls(9, last="started"))


HANGS: dict[Callable[[int], Dump], tuple[str, tuple[int, ...]]] = {
    behind: ("missing_rank", (2,)),
    ended: ("stream_behind", (2,)),
    frozen: ("frozen", ()),
}


def judged(hang: Callable[[int], Dump], releases: list[Release], *, json_too: bool = False, lost: int = -1) -> Conclusion:  # fmt: skip
    """Each rank's dump as the release of that place writes it. `json_too`: every second one as JSON."""
    records = {}
    for rank, release in zip(WORLD, itertools.cycle(releases), strict=False):
        written = as_written_by(release, hang(rank))
        data = as_json(written) if json_too and rank % 2 else pickle.dumps(written, 2)
        if rank != lost:
            records[rank] = parse_dump(data)
    return analyse(records)


@pytest.mark.parametrize("hang", HANGS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
@pytest.mark.parametrize("json_too", [False, True], ids=["pickles", "with JSON"])
def test_the_same_hang_is_told_alike(
    release: Release, hang: Callable[[int], Dump], json_too: bool
) -> None:
    found = judged(hang, [release], json_too=json_too)
    assert (found.kind, found.culprits) == HANGS[hang], found.explanation


@pytest.mark.parametrize("hang", HANGS, ids=lambda one: one.__name__)
def test_ranks_of_different_versions_are_compared(hang: Callable[[int], Dump]) -> None:
    for releases in itertools.permutations(RELEASES.values(), len(WORLD)):
        found = judged(hang, list(releases))
        assert set(found.culprits) <= set(HANGS[hang][1]), (releases, found.explanation)


@pytest.mark.parametrize("hang", [behind, ended], ids=lambda one: one.__name__)
@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
@pytest.mark.parametrize("lost", WORLD)
def test_where_a_dump_is_missing_nobody_else_is_named(
    release: Release, hang: Callable[[int], Dump], lost: int
) -> None:
    found = judged(hang, [release], lost=lost)
    assert set(found.culprits) <= {2, lost}, found.explanation
    if lost == 2 and hang is behind:
        assert (found.kind, found.culprits) == ("no_dump", (2,))
