"""One rank's Flight Recorder as PyTorch dumps it: the pickle of NCCL, of gloo and of nccl2, and their JSON.

Versions 2.4 (PyTorch 2.6), 2.9 (2.8) and 2.10 (2.9 and newer) have the fields that are read here; older ones are brought into their form
(`old_forms`). JSON has no frames, 0 for a missing time and text for the numbers of `pg_status`; a pickle of an idle process has no `entries`.
With `TORCH_INCLUDE_ONLY_ACTIVE=1` finished calls are left out: then `pg_status` alone says how far a rank is. `pg_config` of gloo names
no group: then the members are not known (`filled` of `mldebug.capture.flight_recorder.analysis` guesses them).
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from mldebug.capture.flight_recorder.entries import (
    MAX_CALLS,
    MAX_GROUPS,
    MAX_RECORD,
    GroupInfo,
    checked,
    group_counts,
    make_record,
)
from mldebug.capture.flight_recorder.fast_parse import parse_without_old_calls
from mldebug.capture.flight_recorder.old_forms import DEFAULT, is_list_of_calls, modern
from mldebug.capture.flight_recorder.raw_calls import RawCall, tells_completion
from mldebug.capture.flight_recorder.safe_load import MAX_OBJECTS, load_plain
from mldebug.core.model import FlightRecord
from mldebug.core.ranksets import MAX_RANK, fold_ranks
from mldebug.core.redact import clean

MAX_BYTES = 64 << 20
MAX_DUMP = 8 << 20  # from a living job: 2,000 calls with their stacks have 0.27 MB
MAX_MEMBERS = (
    1 << 16
)  # of all groups of a living job's dump that differ; eight times its ranks where these are more
MAX_LIVING = 400_000  # values of a dump of a living job: that one has 70,000
KEEP = 128  # calls of one group: the oldest that are not finished, and the newest
MAX_KEPT = 16_384  # entries of one dump that are looked at closely
MAX_SIZES = 200_000  # tensors of all these entries
MAX_FRAMES = 32
NO_BACKEND = "?"  # of a process that has called nothing at all
FIELDS = frozenset(RawCall.__struct_fields__)
_ENTRIES = list[RawCall]

Raw = dict[str, Any]


class DumpLimits(NamedTuple):
    """Limits on what is read of one dump. `values`: how many in all; `keep`: calls of each group; `world`: ranks of the job, if
    known; `evidence`: bytes of the record.
    """

    values: int = MAX_OBJECTS
    keep: int = KEEP
    world: int | None = None
    evidence: int = MAX_BYTES


USUAL = DumpLimits()


def limits_of_living_job(world: int) -> DumpLimits:
    """The limits for the dump of a job that runs, which the agent parses in its own process. `world`: the job's number of ranks."""
    return DumpLimits(MAX_LIVING, MAX_CALLS, world, MAX_RECORD)


def parse_dump(data: bytes, limits: DumpLimits = USUAL) -> FlightRecord:
    """Parse a Flight Recorder dump, pickle or JSON, of any known version. Raises ValueError with the reason."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has {len(data):,} bytes, more than {MAX_BYTES:,}")
    with suppress(ValueError):  # of what was left out; all of it may be whole
        if (part := parse_without_old_calls(data, KEEP // 2, limits.values)) is not None:
            return _believed(part, limits)
    return _believed(load_plain(data, limits.values), limits)


def record_of(raw: object) -> FlightRecord:
    """The record of a dump that is decoded. Raises ValueError with the reason."""
    return _believed(raw, USUAL)


def _believed(raw: object, limits: DumpLimits) -> FlightRecord:
    if is_list_of_calls(raw):
        raw = {"version": "1.0", "entries": raw}
    if not isinstance(raw, dict) or not raw.keys() & {"entries", "pg_status", "pg_config"}:
        raise ValueError("it is no dump of a Flight Recorder: no entries, no pg_status")
    try:
        return _record(raw, limits)
    except (msgspec.MsgspecError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is not what it should be ({clean(str(error))[:200]})") from None


def _record(raw: Raw, limits: DumpLimits) -> FlightRecord:
    entries = raw.get("entries") or []
    if not isinstance(entries, list) or not all(type(call) is dict for call in entries):
        raise TypeError("its entries are no list of calls")
    kept = msgspec.convert(_small(_few(modern(entries))), type=_ENTRIES, strict=False)
    infos = _named(dict(_group_infos(raw.get("pg_config"), limits.world)), kept)
    counts = group_counts(raw.get("pg_status"), kept)
    whole = not counts and (not entries or entries[0].get("record_id") == 0)
    record = make_record(
        _text(raw.get("version"))[:64],
        [kept],
        _with_unused(infos, kept, whole),
        keep=limits.keep,
        counts=counts,
    )
    return checked(record, limits.evidence)


# --- which entries are kept ------------------------------------------------------------------------


def _few(entries: list[Raw]) -> list[Raw]:
    """Of each group the oldest calls that are not finished and the newest, in their order, the newest entry last."""
    half = KEEP // 2
    found: list[Raw] = []
    newest: dict[Any, int] = {}
    pending: dict[Any, list[Raw]] = {}
    for entry, done in _settled(entries):
        owner = entry.get("pg_id"), bool(entry.get("is_p2p"))
        count = newest[owner] = newest.get(owner, 0) + 1
        if count <= half or not done:
            place = found if count <= half else pending.setdefault(owner, [])
            place.append(entry if entry.get("retired") is done else {**entry, "retired": done})
    older = [one for waiting in pending.values() for one in waiting[-half:]]
    few = [*older, *found][:MAX_KEPT]
    return sorted(few, key=_number)


def _number(entry: Raw) -> int:
    number = entry.get("record_id")
    return number if type(number) is int else 0


def _settled(entries: list[Raw]) -> Iterable[tuple[Raw, bool]]:
    """The newest first, each with whether it has ended.

    NCCL never marks the members of a batch as ended, but calls of one group on one stream end in their order: all collectives,
    and sends and receives of one kind between two ranks. The end of a batch carries its members' number. What NCCL has retired
    and not completed has run into its timeout, and so have XCCL and HCCL, which share its recorder; gloo only ever retires.
    """
    ended: set[tuple[Any, ...]] = set()
    for entry in reversed(entries):
        name, done = entry.get("profiling_name"), entry.get("state") == "completed"
        if not (type(name) is str and tells_completion(name)):
            yield entry, done or bool(entry.get("retired"))
            continue
        p2p = bool(entry.get("is_p2p"))
        stream = entry.get("pg_id"), p2p, name if p2p else ""
        batch = entry.get("pg_id"), p2p, entry.get("p2p_seq_id" if p2p else "collective_seq_id")
        if done:
            ended.update((batch, stream) if name.endswith(":coalesced") else (stream,))
        yield entry, done or stream in ended or batch in ended


def _small(entries: list[Raw]) -> list[Raw]:
    """The fields that are read. A pickle may name one long list many times, so all of them together are bounded."""
    sides = ("input_sizes", "output_sizes")
    if sum(len(call.get(side) or ()) for call in entries for side in sides) > MAX_SIZES:
        raise TypeError(f"its calls have more than {MAX_SIZES:,} tensors")
    found = []
    for one in entries:
        small = {name: one[name] for name in FIELDS & one.keys() if one[name] is not None}
        for side in sides:
            small[side] = [size[:MAX_FRAMES] for size in small.get(side, ())]
        dtypes = small.get("input_dtypes", ())
        small["input_dtypes"] = (dtypes,) if type(dtypes) is str else dtypes[:8]
        small["frames"] = small.get("frames", ())[:MAX_FRAMES]
        found.append(small)
    return found


# --- groups ----------------------------------------------------------------------------------------


def _group_infos(config: object, world: int | None) -> Iterable[tuple[str, GroupInfo]]:
    """The groups whose members the dump lists, by name. Raises ValueError where they are of another job."""
    sizes: dict[str, int] = {}
    for name, one in list(config.items())[:4096] if isinstance(config, dict) else ():
        if type(name) is str and len(name) <= 400 and isinstance(one, dict):
            members = _members(one.get("ranks"))
            sizes[members.folded] = members.size
            if world is not None and members.last >= world:
                raise ValueError(f"it is of a job with more than {world} ranks")
            if world is not None and sum(sizes.values()) > max(MAX_MEMBERS, 8 * world):
                raise ValueError("its groups have too many members")
            if world is not None and one.get("desc") == DEFAULT and members.size not in (0, world):
                raise ValueError(f"it is of a job with {members.size} ranks and not {world}")
            yield name, GroupInfo(_text(one.get("desc"))[:400], members.folded)


def _text(value: object) -> str:
    """A text, or a number as text; "" for anything else, whose text might be endless."""
    return str(value) if type(value) in (str, int, float) else ""


def _named(infos: dict[str, GroupInfo], kept: list[RawCall]) -> dict[str, GroupInfo]:
    """Gives gloo's only group, which its config does not name, the name that the calls use."""
    nameless = infos.pop("", None)
    names = {call.process_group for call in kept}
    if nameless is None or infos or len(names) != 1 or not nameless.members:
        return infos
    ((name, description),) = names
    return {name: nameless._replace(description=description)}


class _Members(NamedTuple):
    """Ranks, folded, how many, and the last of them."""

    folded: str = ""
    size: int = 0
    last: int = -1


def _members(ranks: object) -> _Members:
    """Of the text `[0, 1, 2, 3]`, or of such a list; nobody of anything else."""
    if isinstance(ranks, list) and len(ranks) <= MAX_RANK:
        ranks = str(ranks) if all(type(rank) is int for rank in ranks) else ""
    return _folded(ranks) if isinstance(ranks, str) and len(ranks) < 8 * MAX_RANK else _Members()


@lru_cache(maxsize=MAX_GROUPS)
def _folded(text: str) -> _Members:
    if not re.fullmatch(r"\[\d{1,6}(?:, ?\d{1,6})*+\]", text, re.ASCII):
        return _Members()
    ranks = sorted({int(one) for one in text[1:-1].split(",")})
    return _Members(fold_ranks(ranks), len(ranks), ranks[-1])


def _with_unused(
    infos: dict[str, GroupInfo], kept: list[RawCall], whole: bool
) -> dict[str, GroupInfo]:
    """Marks groups without a call as unused, where the recorder has dropped no call, and each says of which it is."""
    backends = {call.owner[1] for call in kept} or {NO_BACKEND}
    used = {call.process_group[0] for call in kept if not call.is_p2p}
    strange = any(not call.placed or call.process_group[0] not in infos for call in kept)
    if not whole or strange or len(backends) > 1:
        return infos
    (backend,) = backends
    return {
        name: one if name in used else one._replace(calls=0, backend=backend)
        for name, one in infos.items()
    }
