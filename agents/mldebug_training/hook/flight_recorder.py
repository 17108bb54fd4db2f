"""What PyTorch's Flight Recorder knows of this process, written into `RECORD.flight` when a signal asks for it.

Two recorders exist in one process: that of legacy NCCL (PyTorch 2.5 and newer), and the one of gloo and the other backends
(2.8 and newer, recording since 2.13); `nccl2` has one more (`handlers.py`). All give JSON under the interpreter lock, a full one in some 0.1 s; a main
thread that waits in a collective does not hold that lock. They are asked only where process groups exist, because the
first question makes a recorder, which reads its settings then and never again.

The file is JSON, at most 1 MiB, made whole under another name:

    {"layout": 1, "rank": 2, "groups": {NAME: {"desc": "dp", "ranks": [0, 1, 2, 3], "calls": 41, "backend": "nccl"}},
     "dumps": [{"version": "2.10", "entries": [{…}]}]}

`groups` is this process's membership, by global ranks, with the number of the group's last call (-1: it does not tell) and the
backend that counts it (a group may have two; "": not known), and `dumps` what the recorders said, in their spelling; of each
process group only the oldest calls that are not finished and the newest calls at all. What NCCL never marks as finished, and
has to be by what followed, is `retired`. Where the recorder times calls (`TORCH_NCCL_ENABLE_TIMING=1`), `timed` has what the newest 64
of each of 8 groups took.
"""

from __future__ import annotations

import os
import sys

from mldebug_training.common.interrupted import pass_on
from mldebug_training.common.own_file import OwnFile
from mldebug_training.common.shared_files import remove, reserve
from mldebug_training.hook.fr_handler import APART, only_of, recorded_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from mldebug_training.hook.record import HookRecord

SUFFIX = ".flight"
ROOM = 1 << 20  # bytes of the file
MAX_RAW = 32 << 20  # bytes of one recorder's answer, which are read under the interpreter lock
MAX_GROUPS = 64  # of one recorder: the last used
KEEP = 4  # calls of a group that are not finished, and again as many of the newest
KEEP_TIMED = 64  # newest timed calls of a group
MAX_TIMED_GROUPS = 8
SOURCES = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
FIELDS = (
    "record_id", "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "is_p2p", "profiling_name",
    "input_sizes", "output_sizes", "input_dtypes", "state", "retired", "time_created_ns", "timeout_ms",
)  # fmt: skip
MAX_OUTPUTS = 64  # tensors; a list of more is left out: only the sizes of an exchange between parts are compared


class FlightFile:
    """The file `RECORD.flight`, into which this process writes what PyTorch's Flight Recorder has recorded. Its methods never
    raise.
    """

    def __init__(self, record: HookRecord) -> None:
        self._record = record
        self._path = record.path + SUFFIX
        self._file = OwnFile(-1)  # kept open: its lock says that the file is in use
        self._signal = self._answers = 0

    def armed(self, ask: int) -> None:
        """Note and record the signal that requests the Flight Recorder: the number two below `ask`, the signal that
        requests stacks (0: none).
        """
        if ask:
            self._signal = ask - 2
            self._record.write_flight(self._signal, 0)

    def answer(self) -> None:
        """Answer a request for the Flight Recorder: write what it holds now into the file, and count the answer in the hook's
        record. If the file cannot be written it is removed, and the answer counts all the same.
        """
        try:
            self._write(recorded_json(self._record.rank))
        except Exception:  # a full /dev/shm, another PyTorch than those we know
            remove(self._path)
        self._answers += 1
        self._record.write_flight(self._signal, self._answers)

    def close(self, *, unlink: bool = True) -> None:
        """Close the file and, with `unlink`, remove it. A forked child must leave the file of its parent."""
        self._file.close()
        if unlink:
            remove(self._path)

    def _write(self, data: bytes) -> None:
        new = self._path + ".new"
        remove(new)
        file = OwnFile(reserve(new, len(data)))
        try:
            file.write(data)
            os.rename(new, self._path)
        except OSError:
            file.close()
            remove(new)
            raise
        self._file.close()
        self._file = file


def recorded_json(rank: int) -> bytes:
    """The file's content as JSON. `rank`: the global rank from the environment, -1 where it has none.

    Raises ValueError for more than 1 MiB, and whatever PyTorch raises.
    """
    import json

    groups, its_rank = membership()
    raw_dumps = [json.loads(raw) for raw in _dumps()] if groups else []
    dumps, timed = (
        [condensed(one) for one in raw_dumps],
        [group for one in raw_dumps for group in timings(one)],
    )
    for backend in {group["backend"] for group in groups.values()}.intersection(APART):
        raw = recorded_by(backend)
        if raw and len(raw) <= MAX_RAW:
            dumps.append(condensed(only_of(backend, json.loads(raw))))
    found = {
        "layout": 1,
        "rank": its_rank if rank < 0 else rank,
        "groups": groups,
        "dumps": dumps,
        "timed": timed,
    }
    data = json.dumps(found, separators=(",", ":")).encode()
    if len(data) > ROOM:
        raise ValueError("more than there is room for")
    return data


def membership() -> tuple[dict[str, dict[str, Any]], int]:
    """The process groups that this process belongs to, and its global rank; `({}, -1)` while torch.distributed is not initialised.

    The groups are by name: `{NAME: {"desc": str, "ranks": [int], "calls": int, "backend": str}}`, see the module.
    """
    module = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(module, "_world", None)
    if world is None:
        return {}, -1
    groups = {}
    for group, name in list(world.pg_names.items()):
        ranks = world.pg_group_ranks.get(group)
        if ranks:
            desc = str(getattr(group, "group_desc", ""))
            groups[str(name)] = {
                "desc": desc[:64],
                "ranks": sorted(map(int, list(ranks))),
                "calls": _count(group),
                "backend": _counter(group),
            }
    default = world.default_pg
    return groups, int(default.rank()) if default is not None else -1


def collective_timeout(group: Any = None) -> float:
    """Seconds after which the backends of `group` (None: all ranks) abort a collective; 0 where that is not known."""
    try:
        group = group or sys.modules["torch.distributed.distributed_c10d"]._world.default_pg
        backends = [group._get_backend(device) for device in group._device_types]
        timeouts = [backend.options._timeout.total_seconds() for backend in backends]
        return float(min(timeouts))
    except Exception as error:  # no torch, no group yet, another PyTorch than those we know
        pass_on(error)
        return 0.0


def _count(group: Any) -> int:
    """The number of its last call: 0 where it was made anew, whatever a recorder holds of its name. A read of memory."""
    try:
        return int(group._get_sequence_number_for_group())
    except Exception:  # a backend that does not count
        return -1


def _counter(group: Any) -> str:
    """The backend whose calls that number counts, as a recorder spells it: a group of gloo and NCCL counts those of NCCL."""
    try:
        return str(group.name())[:64]
    except Exception:  # another PyTorch than those we know
        return ""


def _dumps() -> Iterable[bytes]:
    bindings = getattr(sys.modules.get("torch._C"), "_distributed_c10d", None)
    for name in SOURCES:
        dump = getattr(bindings, name, None)
        raw = dump() if dump is not None else b""
        if raw and len(raw) <= MAX_RAW:
            yield raw


def condensed(dump: dict[str, Any]) -> dict[str, Any]:
    """The part of one recorder's dump that is written: for each of the groups used last, the oldest unfinished and the newest
    calls, with `FIELDS` of each.
    """
    by_group: dict[Any, list[dict[str, Any]]] = {}
    for entry in _settled(dump.get("entries") or []):
        by_group.setdefault((entry.get("pg_id"), bool(entry.get("is_p2p"))), []).append(entry)
    last_used = sorted(by_group.values(), key=lambda calls: calls[-1].get("record_id", 0))
    kept = [entry for calls in last_used[-MAX_GROUPS:] for entry in _few(calls)]
    return {
        "version": dump.get("version", ""),
        "entries": [{name: one[name] for name in FIELDS if _is_written(one, name)} for one in kept],
    }


def timings(dump: dict[str, Any]) -> list[dict[str, Any]]:
    """How long the newest collectives of each group took: `{"group": NAME, "backend": "nccl", "calls": [[number, milliseconds, created (ns)]]}`.
    Only where the job has the recorder's timing on.
    """
    by_group: dict[tuple[str, str], list[list[Any]]] = {}
    for entry in dump.get("entries") or []:
        took, name = entry.get("duration_ms"), entry.get("process_group") or [""]
        if took is None or entry.get("is_p2p") or not _finished(entry):
            continue
        key = str(name[0]), str(entry.get("profiling_name")).partition(":")[0]
        call = [
            int(entry.get("collective_seq_id", -1)),
            float(took),
            int(entry.get("time_created_ns") or 0),
        ]
        by_group.setdefault(key, []).append(call)
    last_used = list(by_group.items())[-MAX_TIMED_GROUPS:]
    return [
        {"group": group, "backend": backend, "calls": calls[-KEEP_TIMED:]}
        for (group, backend), calls in last_used
    ]


def _is_written(entry: dict[str, Any], name: str) -> bool:
    return name in entry and (name != "output_sizes" or len(entry[name]) <= MAX_OUTPUTS)


def _settled(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With `retired` where a later call proves it: NCCL never updates the members of a batch.

    Calls of one group on one stream end in their order: all collectives, and sends and receives of one kind between two
    ranks. The end of a batch carries its members' number.
    """
    ended: set[tuple[Any, ...]] = set()
    found = []
    for entry in reversed(entries):
        name = str(entry.get("profiling_name"))
        if name.startswith("nccl:"):
            p2p = bool(entry.get("is_p2p"))
            group = entry.get("pg_id"), p2p
            batch = (*group, entry.get("p2p_seq_id" if p2p else "collective_seq_id"))
            stream = (*group, name if p2p else "")
            if _finished(entry):
                ended.update((batch, stream) if name == "nccl:coalesced" else (stream,))
            elif batch in ended or stream in ended:
                entry = dict(entry, retired=True)
        found.append(entry)
    return found[::-1]


def _few(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The oldest that are not finished and the newest, in their order."""
    newest = calls[-KEEP:]
    older = [call for call in calls[:-KEEP] if not _finished(call)]
    return older[:KEEP] + newest


def _finished(call: dict[str, Any]) -> bool:
    return bool(call.get("retired")) or call.get("state") == "completed"
