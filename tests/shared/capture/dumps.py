"""Flight Recorder dumps made for tests, in PyTorch's own spelling."""

import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Dump = dict[str, Any]
START = 1_700_000_000 * 10**9
FRAMES = [
    {
        "name": "all_reduce",
        "filename": "/x/site-packages/torch/distributed/distributed_c10d.py",
        "line": 3068,
    },
    {"name": "train_step", "filename": "/home/user/train.py", "line": 21},
]


def made(
    op: str,
    sequence: int,
    *,
    state: str = "completed",
    size: int = 16,
    group: str = "0",
    backend: str = "nccl",
    dtype: str = "Float",
    at: int = 0,
    **more: Any,
) -> Dump:
    """One call; `at` moves it in time (seconds), `group` is named as the job names it."""
    done = state == "completed"
    return {
        "record_id": 0, "pg_id": 0, "process_group": (group, "default_pg" if group == "0" else group),
        "collective_seq_id": sequence, "p2p_seq_id": 0, "op_id": sequence, "is_p2p": False,
        "profiling_name": f"{backend}:{op}", "input_sizes": [[size]], "output_sizes": [[size]],
        "input_dtypes": [dtype], "output_dtypes": [dtype], "state": state, "retired": done,
        "time_created_ns": START + (at or sequence) * 10**9, "time_discovered_started_ns": None,
        "time_discovered_completed_ns": START + sequence * 10**9 + 1 if done else None,
        "timeout_ms": 600_000, "thread_id": "1", "thread_name": "python3", "frames": FRAMES,
    } | more  # fmt: skip


def transfer(op: str, own: int, peer: int, sequence: int = 1, **more: Any) -> Dump:
    """A send or receive of NCCL by the ranks' numbers in the group."""
    arrow = "->" if op == "send" else "<-"
    return made(
        f"{op} {own}{arrow}{peer}", 0, at=sequence, is_p2p=True, p2p_seq_id=sequence,
        **({"state": "scheduled"} | more),
    )  # fmt: skip


def calls(count: int, *, last: str = "completed", first: int = 1, **more: Any) -> list[Dump]:
    """That many all_reduce in order, all done but the last, which has this state."""
    numbers = range(first, count + 1)
    return [
        made("all_reduce", n, state=last if n == count else "completed", **more) for n in numbers
    ]


def dump(
    entries: Iterable[Dump],
    groups: Mapping[str, Sequence[int]] | None = None,
    *,
    first_record: int = 0,
    version: str = "2.10",
) -> Dump:
    """A whole dump; `groups` are those of the process, with their members."""
    facts = {"0": range(4)} if groups is None else groups
    numbers = {name: number for number, name in enumerate(facts)}
    numbered = [
        one | {"record_id": first_record + index, "pg_id": numbers.get(one["process_group"][0], 0)}
        for index, one in enumerate(entries)
    ]
    config = {
        name: {
            "name": name,
            "desc": "default_pg" if name == "0" else name,
            "ranks": str(list(ranks)),
        }
        for name, ranks in facts.items()
    }
    return {
        "version": version,
        "comm_lib_version": "2.28.9",
        "pg_config": config,
        "pg_status": {},
        "entries": numbered,
    }


Memo = dict[object, int]


def as_torch(value: object, memo: Memo | None = None) -> bytes:
    """A dump in the very steps that PyTorch's own pickler writes: a text or a frame once, and from then on a reference to it."""
    if memo is None:
        memo = {}
        return b"\x80\x02" + as_torch(value, memo) + _put(memo, "all of it") + b"."
    if isinstance(value, str):
        data = value.encode()
        return _once(value, b"X" + len(data).to_bytes(4, "little") + data, memo)
    if isinstance(value, dict):
        if (frame := id(value)) in memo:
            return _once(frame, b"", memo)
        items = (as_torch(one, memo) for item in value.items() for one in item)
        written = b"}(" + b"".join(items) + b"u"
        return _once(frame, written, memo) if "filename" in value else written
    if isinstance(value, list):
        return b"](" + b"".join(as_torch(one, memo) for one in value) + b"e"
    if isinstance(value, tuple):
        return b"".join(as_torch(one, memo) for one in value) + b"\x86"
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    return _number(int(str(value)))


def _once(key: object, written: bytes, memo: Memo) -> bytes:
    if (known := memo.get(key)) is None:
        return written + _put(memo, key)
    return b"h%c" % known if known < 256 else b"j" + known.to_bytes(4, "little")


def _put(memo: Memo, key: object) -> bytes:
    new = memo[key] = len(memo)
    return b"q%c" % new if new < 256 else b"r" + new.to_bytes(4, "little")


def _number(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K%c" % value
    if 0 <= value < 1 << 16:
        return b"M" + value.to_bytes(2, "little")
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + value.to_bytes(4, "little", signed=True)
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)


def write(folder: Path, dumps: Mapping[int, Dump], *, prefix: str = "trace_") -> Path:
    """Each as PyTorch's pickler has it (protocol 2)."""
    folder.mkdir(exist_ok=True)
    for rank, one in dumps.items():
        (folder / f"{prefix}{rank}").write_bytes(pickle.dumps(one, 2))
    return folder


def as_json(one: Dump) -> bytes:
    """The same in the spelling of PyTorch's JSON: no frames, 0 for a missing time, text for the numbers of pg_status."""
    entries = [
        {
            name: 0 if value is None else value
            for name, value in entry.items()
            if name != "frames" and not (name == "state" and value is None)
        }
        for entry in one["entries"]
    ]
    status = {
        name: {key: str(value) for key, value in counts.items()}
        for name, counts in one.get("pg_status", {}).items()
    }
    return json.dumps(
        one | {"entries": entries} | ({"pg_status": status} if status else {})
    ).encode()


def late(rank: int = 2, world: int = 4, count: int = 4) -> dict[int, Dump]:
    """One rank has not made the call in which all others wait."""
    members = {"0": range(world)}
    waiting = dump(calls(count, last="started"), members)
    behind = dump(calls(count - 1), members)
    return {one: behind if one == rank else waiting for one in range(world)}


def odd_size(rank: int = 0, world: int = 4) -> dict[int, Dump]:
    """One rank reduces twice as many elements as the others."""
    members = {"0": range(world)}
    odd = dump([*calls(3), made("all_reduce", 4, state="scheduled", size=32)], members)
    usual = dump(calls(4, last="scheduled"), members)
    return {one: odd if one == rank else usual for one in range(world)}


def stuck(world: int = 4, count: int = 4, **more: Any) -> dict[int, Dump]:
    """All are in one call, and it does not end."""
    one = dump(calls(count, last="started", **more), {"0": range(world)})
    return dict.fromkeys(range(world), one)


def not_started(rank: int = 2, world: int = 4) -> dict[int, Dump]:
    """All have called it, and the GPU of one has not come to it."""
    held = dump(calls(4, last="scheduled"), {"0": range(world)})
    return stuck(world) | {rank: held}
