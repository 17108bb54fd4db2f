"""What one node sends when it is asked for its captures, and how that travels over a terminal's stdout.

A reply is JSON, compressed, in base64, cut into lines that each stand for themselves:

    mldebug-node TOKEN NUMBER COUNT NODE BASE64

so that a login banner, the shell's noise, another node's lines between them or a scheduler's label before them do no
harm. `SCHEMA` has a number: fields may be added to it (unknown ones are ignored), a reply of another number is refused.
"""

import base64
import binascii
import re
import secrets
import zlib
from collections.abc import Iterator

import msgspec

from mldebug import __version__
from mldebug.core.errors import EvidenceError
from mldebug.core.model import Gap, NodeBrief, NodeCapture
from mldebug.core.redact import clean
from mldebug.probes.preflight.findings import NodeFindings

SCHEMA = "mldebug.node/1"
MAX_BYTES = 4 << 20  # of one reply, unpacked
MAX_LINE = 1_000  # characters: Slurm cuts what a task writes into messages of 1,024 bytes
MAX_LINES = 2 * MAX_BYTES // 700
MAX_CAPTURES = 16

_CHUNK = 700
_LINE = re.compile(
    rb"mldebug-node ([0-9a-f]{16}) ([0-9]{1,6}) ([0-9]{1,6}) ([A-Za-z0-9_.-]{1,253}) ([A-Za-z0-9+/=]{1,700})\s*\Z"
)
_SCHEMA = re.compile(r"mldebug\.node/([0-9]{1,9})")


class NodeReply(msgspec.Struct, frozen=True, kw_only=True):  # its schema is always written
    """The captures of one node, taken at one moment.

    Times are by that node's clock, and are shown but never compared with other clocks.
    """

    schema: str = SCHEMA
    node: str  # as it calls itself
    machine: str = ""  # two names of one machine have the same
    version: str = __version__
    captures: tuple[NodeCapture, ...] = ()  # one for each run that has ranks on it
    gaps: tuple[Gap, ...] = ()  # what it could not see, of no run in particular
    hidden: bool = False  # there are processes of others that it may not look at
    uid: int = 0  # as whom it looked
    age: float = 0.0  # seconds from the first of its captures to this reply, by its own clock
    findings: NodeFindings | None = None  # of `mldebug preflight`, which has nothing captured
    view: NodeBrief | None = (
        None  # of `mldebug status`, `gpus list` and `top`, which capture nothing either
    )


class _ReplyHead(msgspec.Struct):
    schema: str = ""
    version: str = ""


class ReplyLine(msgspec.Struct, frozen=True):
    """One line of an encoded reply: its number, the number of lines, and a part of the text. `token` is the same in all lines of a reply."""

    token: bytes
    number: int
    count: int
    node: str
    text: bytes


def encode(reply: NodeReply) -> Iterator[bytes]:
    """A node's captures as text lines that can be found again among a login banner and other nodes' output."""
    text = base64.b64encode(pack(reply))
    parts = [text[at : at + _CHUNK] for at in range(0, len(text), _CHUNK)]
    token, node = secrets.token_hex(8), re.sub(r"[^A-Za-z0-9_.-]", "-", reply.node)[:253] or "-"
    yield b"\n"  # a banner may have no end of line
    for number, part in enumerate(parts):
        yield f"mldebug-node {token} {number} {len(parts)} {node} ".encode() + part + b"\n"


def read_line(line: bytes) -> ReplyLine | None:
    """Parse one line that a node printed when it was asked for its captures (the form at the top of this file), whatever text stands
    before it; None for any other line.
    """
    found = _LINE.search(line) if len(line) <= 2 * MAX_LINE else None
    if found is None:
        return None
    number, count = int(found[2]), int(found[3])
    if not number < count <= MAX_LINES:
        return None
    return ReplyLine(found[1], number, count, found[4].decode(), found[5])


class ReplyLines:
    """Collects the lines of one node's reply. If the node sends several replies, the first one is used."""

    def __init__(self) -> None:
        self._first: ReplyLine | None = None
        self._parts: dict[int, bytes] = {}

    def add(self, piece: ReplyLine) -> None:
        """Add one line. A line of another reply than the first is ignored."""
        first = self._first = self._first or piece
        if (piece.token, piece.count) == (first.token, first.count):
            self._parts.setdefault(piece.number, piece.text)

    @property
    def begun(self) -> bool:
        """Whether a line of the reply has come yet."""
        return self._first is not None

    @property
    def complete(self) -> bool:
        """Whether all lines of the reply were added."""
        return self._first is not None and len(self._parts) == self._first.count

    def reply(self) -> NodeReply:
        """Decode the reply. EvidenceError, with a sentence, where it is incomplete or damaged."""
        if not self.complete:
            count = self._first.count if self._first else 0
            raise EvidenceError(f"only {len(self._parts)} of {count} lines of its answer came")
        return decode(b"".join(self._parts[number] for number in sorted(self._parts)))


def decode(text: bytes) -> NodeReply:
    """Decode a reply from base64 text. EvidenceError, with a sentence, where it is damaged."""
    try:
        return unpack(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        raise EvidenceError("its answer was damaged on the way") from error


def pack(reply: NodeReply) -> bytes:
    """Encode a reply as JSON compressed with zlib, for connections that can carry binary data."""
    return zlib.compress(msgspec.json.encode(reply))


def unpack(packed: bytes) -> NodeReply:
    """Decode a reply from compressed bytes. EvidenceError, with a sentence, where it is damaged or of another schema."""
    data = _unpack(packed)
    try:
        _check_schema(msgspec.json.decode(data, type=_ReplyHead))
        reply = msgspec.json.decode(data, type=NodeReply)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise EvidenceError(f"its answer is malformed: {clean(str(error))}") from error
    if len(reply.captures) > MAX_CAPTURES:
        raise EvidenceError(f"it sent {len(reply.captures)} captures, more than {MAX_CAPTURES}")
    return reply


def _unpack(packed: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed, MAX_BYTES)
    except zlib.error as error:
        raise EvidenceError("its answer was damaged on the way") from error
    if unpacker.unconsumed_tail:
        raise EvidenceError(f"its answer is larger than {MAX_BYTES >> 20} MiB")
    if not unpacker.eof:
        raise EvidenceError("its answer was damaged on the way")
    return data


def _check_schema(head: _ReplyHead) -> None:
    if _SCHEMA.fullmatch(head.schema) is None:
        raise EvidenceError(f"its answer is no capture of mldebug ({clean(head.schema, 40)!r})")
    if head.schema != SCHEMA:
        other = another_mldebug(head.version, head.schema, SCHEMA)
        raise EvidenceError(
            f"it has {other}; this one ({__version__}) reads {SCHEMA}: install the same on both"
        )


def another_mldebug(version: str, schema: str, ours: str) -> str:
    """A description of the sender of a message in another schema: `mldebug 0.3, which is newer and speaks mldebug.node/2`.

    `ours`: the schema of this version of mldebug.
    """
    age = "newer" if int(schema.rpartition("/")[2]) > int(ours.rpartition("/")[2]) else "older"
    return (
        f"mldebug {clean(version, 20) or 'of another version'}, which is {age} and speaks {schema}"
    )
