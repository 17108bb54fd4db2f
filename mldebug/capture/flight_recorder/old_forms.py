"""Dumps of the first PyTorch versions that had a Flight Recorder (2.1 to 2.4), in the fields of today's.

Version 1.x has one `seq_id` for collectives, sends and receives, and no name of the group, whose number stands for it; the very first was a
list of calls and counted microseconds. From 2.0 on the name came, first without a description. Nothing else differs that is read here.
"""

from typing import Any

Raw = dict[str, Any]
DEFAULT = "default_pg"  # what PyTorch calls the group of all ranks
_PAIRS = ("send", "recv")


def is_list_of_calls(raw: object) -> bool:
    """Whether a decoded dump has PyTorch's first form, a plain list of calls."""
    calls = raw if isinstance(raw, list) else []
    return bool(calls) and all(type(one) is dict and "profiling_name" in one for one in calls)


def modern(entries: list[Raw]) -> list[Raw]:
    """The calls of an old dump with the field names of today's; calls that have these already are not changed."""
    return [one if _is_modern(one) else _modern(one) for one in entries]


def _is_modern(entry: Raw) -> bool:
    return "collective_seq_id" in entry and type(entry.get("process_group")) is not str


def _modern(entry: Raw) -> Raw:
    name = entry.get("profiling_name")
    operation = name.rpartition(":")[2].partition(" ")[0] if type(name) is str else ""
    pair = bool(entry.get("is_p2p", operation in _PAIRS))
    found = {"is_p2p": pair, **entry}
    if "seq_id" in entry:
        found.setdefault("p2p_seq_id" if pair else "collective_seq_id", entry["seq_id"])
    found["process_group"] = _group(entry)
    if "time_created_ns" not in entry and type(entry.get("time_created_us")) is int:
        found["time_created_ns"] = entry["time_created_us"] * 1000
    if "record_id" not in entry and type(entry.get("id")) is int:
        found["record_id"] = entry["id"]
    return found


def _group(entry: Raw) -> object:
    """Name and description. The first group of a process is that of all ranks."""
    given = entry.get("process_group")
    if given is not None and type(given) is not str:
        return given
    number = entry.get("pg_id", 0)
    named = str(number) if type(number) is int else ""
    return given if given else named, DEFAULT if number == 0 else ""
