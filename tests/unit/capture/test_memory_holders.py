"""Who held CUDA memory when it ran out: from PyTorch's snapshot, through the hook's file, to the sentences of a report."""

import json
import time
from contextlib import nullcontext
from typing import Any

import pytest

from mldebug.capture.memory.hook_file import MAX_BYTES, parse_failure
from mldebug.capture.memory.sentences import failure_facts, remedies, savings
from mldebug_training.hook.on_request.memory_snapshot import condensed

SITE = "/opt/lib/python3.12/site-packages/torch"
MIB = 1 << 20


def frame(file: str, line: int, name: str) -> dict[str, Any]:
    """As PyTorch has it."""
    return {"filename": file, "line": line, "name": name}


TRAIN, HOARD = frame("/job/train.py", 42, "main"), frame("/job/cache.py", 7, "hoard")
CALL, ADAM = (
    frame(f"{SITE}/nn/modules/module.py", 9, "_call_impl"),
    frame(f"{SITE}/optim/adam.py", 3, "step"),
)
BACKWARD = frame(f"{SITE}/autograd/graph.py", 5, "_engine_run_backward")


def block(size: int, *frames: dict[str, Any], state: str = "active_allocated") -> dict[str, Any]:
    """A block of so many MiB."""
    return {"size": size * MIB, "requested_size": size * MIB, "state": state, "frames": [*frames]}


def written(*blocks: dict[str, Any], requested: int = 100, **more: Any) -> bytes:
    """The hook's file of one GPU with these blocks."""
    used = sum(one["size"] for one in blocks if one["state"] != "inactive")
    whole = sum(one["size"] for one in blocks)
    segment = {"device": 0, "total_size": whole, "active_size": used, "requested_size": used, "blocks": [*blocks]}  # fmt: skip
    file = {"layout": 1, "at": 1.0, "device": 0, "requested": requested * MIB, "capacity": 1000 * MIB, "free": 0, "step": 4}  # fmt: skip
    return json.dumps({**file, "snapshot": condensed({"segments": [segment]}), **more}).encode()


def test_the_line_that_holds_most_comes_first_with_all_its_blocks() -> None:
    data = written(block(30, CALL, TRAIN), *[block(20, HOARD, TRAIN)] * 3, block(5, ADAM, TRAIN))
    holders = parse_failure(data).holders
    assert [
        (one.place, one.phase, one.memory_bytes // MIB, one.blocks) for one in holders.lines
    ] == [
        ("hoard (cache.py:7)", "other", 60, 3),
        ("main (train.py:42)", "forward", 30, 1),
        ("main (train.py:42)", "optimizer", 5, 1),
    ]


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        ((), "backward"),
        ((CALL, BACKWARD, TRAIN), "backward"),  # a checkpointed forward, computed again
        ((CALL, TRAIN), "forward"),
        ((ADAM, TRAIN), "optimizer"),
        ((frame(f"{SITE}/nn/modules/module.py", 9, "_apply"), TRAIN), "model"),
        ((frame("/job/torch_optim.py", 9, "step"), TRAIN), "other"),
    ],
)
def test_the_phase_follows_from_the_functions_of_pytorch(
    frames: tuple[dict[str, Any], ...], phase: str
) -> None:
    assert list(parse_failure(written(block(8, *frames))).holders.phases) == [phase]


def test_pieces_that_would_have_been_enough_are_fragmentation_and_less_is_a_full_gpu() -> None:
    pieces = [block(40, state="inactive")] * 3
    fragmented, full = (
        written(block(9, TRAIN), *pieces),
        written(block(9, TRAIN), *pieces, requested=130),
    )
    assert (
        "fragmented: 120 MiB lie unused in 3 pieces, the largest of 40 MiB"
        in list(failure_facts(parse_failure(fragmented)))[-1]
    )
    assert (
        "so 10 MiB were missing even in one piece" in list(failure_facts(parse_failure(full)))[-1]
    )


def test_what_is_saved_is_what_a_setting_changes() -> None:
    failure = parse_failure(written(block(300, CALL, TRAIN), block(400, ADAM, TRAIN)))
    assert [one.rpartition(" saves ")[2] for one in savings(failure, 4)] == [
        "about 300 MiB (enough)", "about 150 MiB of activations (enough)"
    ]  # fmt: skip
    assert savings(parse_failure(written(block(300, HOARD))), 4) == ()


def test_a_line_that_keeps_a_third_of_all_is_looked_at_before_any_setting() -> None:
    leak = remedies(parse_failure(written(block(300, CALL, TRAIN), block(400, HOARD))), 4)
    assert leak == (
        "look first at what hoard (cache.py:7) keeps: 400 MiB of 700 MiB in use, made outside forward, backward and optimizer",
        "half the micro batch saves about 150 MiB of activations (enough)",
    )


@pytest.mark.parametrize(
    "blocks",
    [
        pytest.param((block(400, CALL, TRAIN), block(350, HOARD)), id="a phase holds more"),
        pytest.param((block(400, ADAM, TRAIN),), id="the optimizer"),
        pytest.param((block(400),), id="no line of Python"),
        pytest.param(tuple(block(100, frame("/job/x.py", one, "f")) for one in range(5)), id="many small ones"),
    ],
)  # fmt: skip
def test_no_line_is_to_be_looked_at_where_none_keeps_much(blocks: tuple[dict[str, Any], ...]) -> None:  # fmt: skip
    failure = parse_failure(written(*blocks))
    assert remedies(failure, 4) == savings(failure, 4)


def test_a_snapshot_of_many_stacks_keeps_the_largest_and_adds_the_others_up() -> None:
    blocks = [block(1 + one // 100, frame("/job/x.py", one, "f")) for one in range(2000)]
    small = condensed({"segments": [{"device": 0, "blocks": blocks}]}, 10)
    held = sum(one[3] for one in small["held"])
    assert len(small["held"]) == 10
    assert held + small["devices"][0]["left_out"] == sum(one["size"] for one in blocks)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\x80\x04N.",
        b" " * (MAX_BYTES + 1),
        written(block(1, TRAIN), layout=2),
        written(block(1, TRAIN), requested=-1),
        written(block(1, TRAIN), snapshot={"stacks": [[5]], "held": [], "devices": []}),
        written(block(1, TRAIN), snapshot={"held": [[0, 9, 1, 1, 1]]}),
        written(block(1, TRAIN), snapshot={"frames": [["/x", 10**30, "f"]]}),
        written(block(1, TRAIN), snapshot=[]),
    ],
)  # fmt: skip
def test_what_is_no_such_file_is_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(ValueError, match="it "):
        parse_failure(data)


@pytest.mark.parametrize(
    ("stacks", "deep", "held", "devices"),
    [(1, 128, 10_000, 64), (800, 128, 800, 64), (1, 60_000, 10_000, 1), (1, 3_000, 300, 64)],
)
def test_a_file_whose_blocks_share_one_endless_stack_costs_no_more_than_its_bytes(
    stacks: int, deep: int, held: int, devices: int
) -> None:
    """Any job may write it: 10 KB took 3.6 s of the agent's time, 256 KB would have taken an hour for each of 64 devices."""
    snapshot = {
        "frames": [["/usr/lib/python3/site-packages/torch/x.py", 1, "f"]],
        "stacks": [[0] * deep] * stacks,
        "held": [[0, number % stacks, 1, 1, 0] for number in range(held)],
        "devices": [{"device": 0}] * devices,
    }
    file = {"layout": 1, "at": 1.0, "device": 0, "snapshot": snapshot}
    data = json.dumps(file, separators=(",", ":")).encode()
    assert len(data) <= MAX_BYTES
    began = time.process_time()
    with pytest.raises(ValueError, match="length") if deep > 128 else nullcontext():
        assert parse_failure(data).holders.lines[0].blocks == held
    assert time.process_time() - began < 3
