"""Whom the words of a victim name: ranks, processes, addresses, or what each side had called. Pure.

| who writes it | whom it names |
|---|---|
| rank 0 of a monitored barrier | the ranks that did not come |
| TORCH_DISTRIBUTED_DEBUG=DETAIL, DDP's check of the model, accelerate's check of shapes | both sides, with what each one called or holds |
| the desync report of torch's watchdog | the ranks behind |
| torch while it makes an NCCL communicator | the rank that should have set the key |
| Horovod's stall inspector | the ranks whose tensors are missing |
| JAX's coordination service | tasks without a heartbeat, and tasks that did not reach a barrier |
| MPI | the rank that aborted, or that cannot be reached |
| Ray | the process of the actor that died, the ranks that did not join |
| NCCL, gloo, stores, UCX | an address |

They may be wrong: a rank that is late may itself wait. So they make suspects, and no culprits.
"""

import re
from typing import NamedTuple

from mldebug.diagnosis.exits.model import Accusation

MOST = 16  # ranks, processes or addresses of one text
_NUMBER = re.compile(r"\d{1,7}")
_TASK = re.compile(r"/job:\w{1,40}/(?:replica:\d{1,7}/)?task:(\d{1,7})")


class Accuser(NamedTuple):
    """A pattern of error messages that accuse other ranks.

    `words`: matches the message; its group `who` holds the rank numbers. `numbers`: finds each
    number there. `did`: what the message says of those ranks.
    """

    words: re.Pattern[str]
    numbers: re.Pattern[str]
    did: str


RANKS: tuple[Accuser, ...] = (
    Accuser(
        re.compile(r"\bRanks? (?P<who>[\d, ]{1,200}) failed to pass monitoredBarrier"),
        _NUMBER,
        "did not come to the monitored barrier",
    ),
    Accuser(
        re.compile(r"caused the desync are:(?P<who>(?:\s*+(?:-\s*+)?\[[\d, ]{1,200}\][^\[\n]{0,160}){1,4})"),
        re.compile(r"(?<=[\[ ])\d{1,7}(?=[\],])"),
        "is behind the others, by the watchdog's report",
    ),
    Accuser(
        re.compile(r"retrieving ncclUniqueId from \[(?P<who>\d{1,7})\] via c10d"),
        _NUMBER,
        "has not begun the communicator",
    ),
    Accuser(
        re.compile(r"Missing ranks:(?P<who>(?:\s*\d{1,7}!?: \[[^\]\n]{0,2000}\]){1,64})"),
        re.compile(r"\d{1,7}(?=!?: \[)"),
        "did not submit the tensors that the others wait for",
    ),
    Accuser(
        re.compile(r"\[missing ranks: (?P<who>[\d, ]{1,200})\]"),
        _NUMBER,
        "did not submit the tensors that the others wait for",
    ),
    Accuser(
        re.compile(r"(?:stopped sending heartbeats\)|unhealthy[^:\n]{0,80}):(?P<who>(?:\s{1,8}/job:\S{1,120}){1,64})"),
        _TASK,
        "sends no heartbeat",
    ),
    Accuser(
        re.compile(r"(?P<who>/job:\S{1,120}) (?:has been set to ERROR|heartbeat timeout)"),
        _TASK,
        "sends no heartbeat",
    ),
    Accuser(
        re.compile(r"[Tt]imed out task names:(?P<who>(?:(?:\s|\\n)*/job:[^\s\\]{1,120}){1,64})"),
        _TASK,
        "did not reach the barrier",
    ),
    Accuser(
        re.compile(r"MPI_ABORT was invoked on rank (?P<who>\d{1,7}) in communicator MPI_COMM_WORLD"),
        _NUMBER,
        "called MPI_Abort",
    ),
    Accuser(
        re.compile(r"\(rank (?P<who>\d{1,7}) in comm 0\): application called MPI_Abort\("),
        _NUMBER,
        "called MPI_Abort",
    ),
    Accuser(
        re.compile(r"application called MPI_Abort\(MPI_COMM_WORLD, -?\d{1,6}\) - process (?P<who>\d{1,7})"),
        _NUMBER,
        "called MPI_Abort",
    ),
    Accuser(
        re.compile(r"ranks have not joined the collective operation: \[(?P<who>[\d, ]{1,200})\]"),
        _NUMBER,
        "did not join",
    ),
    Accuser(
        re.compile(r"\bwait(?:ing|ed)?(?: \d+ ?s\w{0,6})? (?:for|on) ranks? \[?(?P<who>[\d, ]{1,200})"),
        _NUMBER,
        "did not come",
    ),
    Accuser(
        re.compile(r"Mismatched collective detected, please check your collective calls at and around rank (?P<who>\d{1,7})"),
        _NUMBER,
        "called something else, or its neighbours did, says NCCL",
    ),
    Accuser(
        re.compile(r"\bfrom remote rank ?\[?(?P<who>\d{1,7})"),
        _NUMBER,
        "did not notify the others",
    ),
    Accuser(
        re.compile(r"ProcessExitedException: process (?P<who>\d{1,7}) terminated"),
        _NUMBER,
        "has ended, says its parent",
    ),
    Accuser(
        re.compile(r"Communication error with rank (?P<who>\d{1,7})"),
        _NUMBER,
        "cannot be reached",
    ),
)  # fmt: skip
_PIDS = (
    re.compile(r"Actor(?:Died)?Error[^\n]{0,200}(?:\n[^\n]{0,300}){0,6}?\n?\s*pid: (\d{1,10})"),
    # not a worker that has only lost others itself
    re.compile(
        r"RayTaskError\((?!Dist\w{1,20}Error|HorovodInternalError)\w{1,80}\): ray::[^\n]{1,200}? \(pid=(\d{1,10})"
    ),
)
_ADDRESS = r"\[?(?P<address>[\w.:-]{2,80}?)\]?"
_ADDRESSES = (
    re.compile(rf"(?:closed by|completion from|from|remote) peer {_ADDRESS}<"),
    re.compile(rf"(?:[Cc]onnect to|recv from|send to|from|to) {_ADDRESS}<\d{{1,5}}>? (?:failed|returned)"),
    re.compile(r"(?:closed by peer|reset by peer|timeout|[Ss]ocket closed) \[(?P<address>[\w.:-]{2,80})\]:\d"),
    re.compile(r"while trying to connect to \((?P<address>[^,)\s]{1,80}), \d"),
    re.compile(r"remote=\[(?P<address>[^\]\s]{1,80})\]:\d"),
    re.compile(r"Remote daemon *: \[[^\n]{1,80}\] on node (?P<address>[\w.-]{1,80})"),
    re.compile(r"\bdgid ::ffff:(?P<address>[\d.]{7,15})"),
)  # fmt: skip
# Both sides: the speaker first
_CALLS = (
    re.compile(
        r"Rank (?P<mine>\d{1,7}) is running collective: (?P<my>CollectiveFingerPrint\(.{1,1200}?), but Rank (?P<its>\d{1,7})"
        r" is running collective: (?P<other>CollectiveFingerPrint\(.{1,1200}?)(?<!\s)\.?\s*+(?:Collectives differ|$)",
        re.DOTALL,
    ),
    re.compile(
        r"DDP expects same model across all ranks, but Rank (?P<mine>\d{1,7}) has (?P<my>\d{1,9}) params, while rank (?P<its>\d{1,7})"
        r" has inconsistent (?P<other>\d{1,9}) params"
    ),
)
_SPEAKER = re.compile(r"^[\w.]{1,80}: \[[Rr]ank (\d{1,7})\]")
_SHAPE = re.compile(
    r"^[ \t]{0,8}- Process (?P<who>\d{1,7}): (?P<call>\[[^\n]{1,400})$", re.MULTILINE
)
_VARIES = re.compile(r"\s+")


def accusation_of(words: str) -> Accusation | None:
    """The ranks, calls, processes or addresses that this error text accuses, the most certain kind alone; None where it accuses nobody."""
    calls, speaker = _calls(words)
    if calls:
        return Accusation(calls=calls, speaker=speaker, did="called something else")
    for accuser in RANKS:
        found = accuser.words.search(words)
        ranks = accuser.numbers.findall(found["who"]) if found else ()
        if ranks:
            named = tuple(dict.fromkeys(int(one) for one in ranks[:MOST]))
            spoken = _SPEAKER.match(words)
            own = int(spoken[1]) if spoken else None
            return Accusation(ranks=named, did=accuser.did, speaker=own)
    pids = tuple(dict.fromkeys(int(one) for pattern in _PIDS for one in pattern.findall(words)))
    addresses = tuple(
        dict.fromkeys(one["address"] for pattern in _ADDRESSES for one in pattern.finditer(words))
    )
    if not pids and not addresses:
        return None
    return Accusation(pids=pids[:MOST], addresses=addresses[:MOST], did="is gone")


def _calls(words: str) -> tuple[dict[int, str], int | None]:
    """What ranks had called, as one side's words tell it, and who speaks."""
    for pattern in _CALLS:
        found = pattern.search(words)
        if found:
            mine = int(found["mine"])
            return {mine: _even(found["my"]), int(found["its"]): _even(found["other"])}, mine
    shapes = {int(one["who"]): _even(one["call"]) for one in _SHAPE.finditer(words)}
    return (shapes, None) if len(set(shapes.values())) > 1 else ({}, None)


def _even(call: str) -> str:
    return _VARIES.sub(" ", call).strip(" .)")
