"""Whether the nodes of a job would find each other: who tries to reach whom, and what a node says of its tries. Pure."""

import errno
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from mldebug.core.ranksets import fold_nodes
from mldebug.core.text import plural
from mldebug.probes.checks import NodeCheck

ALL_PAIRS = 16  # nodes up to which each tries all others; of more each tries those 1, 2, 4, 8 … places further
STAGE = "rendezvous"
LATE = -1  # in place of an errno: nothing came back in time
STRANGER = -2  # something else answered
LONGEST_NAME = 255


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where the ranks of a job meet, as torchrun takes it: `node1:29500`."""

    host: str
    port: int

    @property
    def words(self) -> str:
        """As a user types it; an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class MeetingNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that came to the rendezvous. `address`: by which it came; `port`: where it listens for the others."""

    name: str
    address: str
    port: int


class MeetingResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one node found. `own`: the rendezvous is at this node; `wrong`: why nobody can meet there, "" where one can; `came`: how many
    nodes came, this one included; `tried`: how many others this one has tried; `failed`: the errno, `LATE` or `STRANGER` by the name of
    a node that could not be reached.
    """

    own: bool = False
    wrong: str = ""
    came: int = 0
    tried: int = 0
    failed: Mapping[str, int] = {}


def parse_endpoint(words: str) -> Endpoint:
    """Read `node1:29500` or `[2001:db8::1]:29500`. Raises ValueError with the reason in words."""
    host, colon, port = words.strip().rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError(f"{words!r} has no port of 1 to 65535 at its end")
    host = host.removeprefix("[").removesuffix("]")
    if not host or len(host) > LONGEST_NAME or any(sign.isspace() for sign in host):
        raise ValueError(f"{words!r} names no host")
    return Endpoint(host=host, port=int(port))


def tries(number: int, count: int) -> tuple[int, ...]:
    """Which of `count` nodes the one with this number (from 0) tries to reach: enough that a node that cannot be reached is found by
    several, and few on each of thousands.
    """
    if count <= ALL_PAIRS:
        return tuple(other for other in range(count) if other != number)
    steps = (1 << power for power in range(count.bit_length()) if 1 << power < count)
    return tuple((number + step) % count for step in steps)


def meeting_check(where: Endpoint, nodes: int, found: MeetingResult, seconds: float) -> Iterator[NodeCheck]:  # fmt: skip
    """What a node says of the rendezvous at `where` with so many `nodes` (1: nobody else was asked to come)."""
    if found.wrong:
        yield NodeCheck(stage=STAGE, state="failed", sentence=f"{where.words} {found.wrong}", seconds=seconds)  # fmt: skip
        return
    by_reason: dict[int, list[str]] = defaultdict(list)
    for name, reason in found.failed.items():
        by_reason[reason].append(name)
    for reason, names in sorted(by_reason.items()):
        yield NodeCheck(stage=STAGE, state="failed", sentence=f"cannot reach {fold_nodes(names)}: {reach_words(reason)}", seconds=seconds)  # fmt: skip
    if not found.failed:
        yield NodeCheck(stage=STAGE, state="fine", sentence=f"{where.words} {_fine(nodes, found)}", seconds=seconds)  # fmt: skip


def _fine(nodes: int, found: MeetingResult) -> str:
    free = "is this node's, and its port is free" if found.own else "answers"
    if nodes <= 1:
        return free
    return f"{free}: {found.came} of {plural(nodes, 'node')} came, {plural(found.tried, 'other')} reached from here"


def reach_words(reason: int) -> str:
    """Why a node could not be reached that listened at that moment, from an errno, `LATE` or `STRANGER`."""
    if reason == LATE:
        return "nothing came back: a firewall drops it, or there is no way between their networks"
    if reason == STRANGER:
        return "another program answered in its place"
    if reason == errno.ECONNREFUSED:
        return "refused, though it listens: a firewall rejects it"
    if reason in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return "no way there: a route is missing, or a firewall rejects it"
    if reason in (errno.EACCES, errno.EPERM):
        return "this node's own rules forbid it: its firewall, or a route"
    return f"error {errno.errorcode.get(reason, reason)}"


def never_met(reason: int, host: str) -> str:
    """Why nobody was met at the rendezvous itself, as a phrase to follow its name."""
    if reason == errno.ECONNREFUSED:
        return f"refuses: no other preflight listens at {host}, or a firewall rejects it"
    return f"cannot be reached: {reach_words(reason)}"


def busy_words(holder: str) -> str:
    """That the port is taken, as a phrase to follow the rendezvous' name. `holder`: `python3 (process 812)`, "" where it cannot be seen."""
    return f"is in use by {holder or 'a process of another user'}: choose another port, or end that"


def own_everywhere(nodes: int) -> str:
    """That each of several nodes would meet itself alone, as a phrase to follow the rendezvous' name."""
    return (
        f"is each node itself: {plural(nodes, 'node')} need the name or the address of one of them"
    )


def listed(nodes: Sequence[MeetingNode], name: str, port: int) -> tuple[MeetingNode, ...]:
    """The nodes that this node tries to reach, chosen from the list of all nodes, which each node has in the same order."""
    places = [index for index, one in enumerate(nodes) if (one.name, one.port) == (name, port)]
    return tuple(nodes[other] for other in tries(places[0], len(nodes))) if places else ()
