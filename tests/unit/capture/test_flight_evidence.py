"""A small file of a Flight Recorder never becomes a giant piece of evidence: it may name one stack, or one group's members, a thousand times."""

import json
import pickle
from typing import Any

import msgspec
import pytest

from mldebug.capture.flight_recorder.dump import limits_of_living_job, parse_dump
from mldebug.capture.flight_recorder.entries import (
    MAX_RECORD,
    MAX_TOGETHER,
    evidence_size,
    within,
)
from mldebug.capture.flight_recorder.hook_file import parse_file
from mldebug.core.model import FlightRecord, NodeCapture
from shared.capture.dumps import calls, dump, made, transfer
from unit.cluster.test_peers_controller import CAPTURE

WORLD = 131_072
FRAME = {"name": "f" * 200, "filename": "/" + "x" * 199, "line": 5}


def bomb(groups: int, members: Any, frames: int) -> dict[str, Any]:
    """Groups that share one list of members and whose calls share one stack, as a pickle may."""
    stack, found = [FRAME] * frames, []
    for group in range(groups):
        for number in range(1, 9):
            place = {"pg_id": group, "process_group": (f"g{group}", "dp"), "record_id": len(found)}
            found.append(made("all_reduce", number, state="scheduled", frames=stack) | place)
    config = {f"g{n}": {"desc": "dp", "ranks": members} for n in range(groups)}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": found}


@pytest.mark.parametrize("world", [8, WORLD])
def test_a_dump_that_becomes_fifty_times_its_size_is_refused(world: int) -> None:
    """191 KB became 10 MB of evidence for each rank, and 660 KB became 39 MB."""
    members = str(list(range(0, world, 2)))
    data = pickle.dumps(bomb(64, members, 32), 2)
    assert len(data) < 1 << 20
    with pytest.raises(ValueError, match="bytes of evidence, more than"):
        parse_dump(data, limits_of_living_job(world))


def test_a_hook_s_file_is_bounded_as_well() -> None:
    ranks = list(range(0, WORLD, 2))
    timed = [{"group": "0", "backend": f"b{n}", "calls": [[1, 1.0, 1]]} for n in range(64)]
    file = {"layout": 1, "rank": 0, "groups": {"0": {"desc": "", "ranks": ranks}}, "dumps": [], "timed": timed}  # fmt: skip
    data = json.dumps(file, separators=(",", ":")).encode()
    assert len(data) < 1 << 20
    with pytest.raises(ValueError, match="bytes of evidence, more than"):
        parse_file(data)


def test_the_estimate_is_near_what_is_written() -> None:
    for whole in (dump([*calls(9), transfer("recv", 3, 2)]), bomb(9, "[0, 1, 2, 5]", 32)):
        record = parse_dump(pickle.dumps(whole, 2))
        written = len(msgspec.json.encode(record))
        assert 0.5 * written < evidence_size(record) < 1.5 * written + 1000


def test_the_largest_that_a_real_job_has_is_believed() -> None:
    """64 groups, each call with a stack of 32 frames in paths as long as conda makes them."""
    whole = bomb(64, str(list(range(8))), 32)
    for call in whole["entries"]:
        call["frames"] = [{"name": "forward_backward", "filename": "/opt/conda/lib/python3.11/site-packages/megatron/core/x.py", "line": 9}] * 32  # fmt: skip
    record = parse_dump(pickle.dumps(whole, 2), limits_of_living_job(8))
    assert evidence_size(record) < MAX_RECORD


def of_ranks(record: FlightRecord, count: int) -> NodeCapture:
    (one, *_) = CAPTURE.ranks
    ranks = (
        msgspec.structs.replace(one, identity=msgspec.structs.replace(one.identity, rank=rank), flight=record)
        for rank in range(count)
    )  # fmt: skip
    return msgspec.structs.replace(CAPTURE, ranks=tuple(ranks))


def test_of_a_thousand_ranks_so_many_are_kept_as_have_room_and_each_other_is_a_gap() -> None:
    large = parse_dump(pickle.dumps(bomb(9, "[0, 1]", 32), 2))
    found = within(of_ranks(large, 200))
    kept = [one for one in found.ranks if one.flight is not None]
    assert 0 < len(kept) < 200
    assert sum(evidence_size(one.flight) for one in kept if one.flight) <= MAX_TOGETHER
    assert len(found.gaps) - len(CAPTURE.gaps) == 200 - len(kept)
    small = of_ranks(parse_dump(pickle.dumps(dump(calls(3)), 2)), 200)
    assert within(small) is small
