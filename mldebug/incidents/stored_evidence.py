"""Reads the evidence of a report: `capture-*.json` of ranks that were alive, `ending-*.json` of an attempt that exited."""

import os
from pathlib import Path

import msgspec

from mldebug.capture.validation import wrong_numbers, wrong_ranks, wrong_time
from mldebug.core.errors import EvidenceError
from mldebug.core.files import read_struct, unreadable
from mldebug.core.model import CAPTURE_SCHEMA, Gap, NodeCapture, QueriedNodes
from mldebug.diagnosis.exits.model import AttemptExit

MAX_CAPTURES = 4_096
QUERIED_FILE = "asked.json"  # all nodes that were asked, where one asked for others
DAMAGED = "this file is damaged or made up"


class StoredEvidence(msgspec.Struct, frozen=True):
    """The evidence in one folder. All fields are empty where there is none."""

    captures: tuple[NodeCapture, ...] = ()  # in order of name, which is that of time on one node
    exit: AttemptExit | None = None
    queried: QueriedNodes | None = None
    at: float = 0.0  # unix time of an end whose exits nobody saw: of the newest log's last change
    gaps: tuple[Gap, ...] = ()  # logs of an end that could be read in part only


def load_evidence(directory: Path) -> StoredEvidence:
    """Read the evidence from a report folder (its `evidence/`), or from the folder itself.

    Raises EvidenceError or AccessError where a file is there and cannot be read or used.
    """
    captures, exits = _files(directory, "capture-"), _files(directory, "ending-")
    if len(captures) > MAX_CAPTURES:
        raise EvidenceError(f"{directory} holds {len(captures)} captures, more than {MAX_CAPTURES}")
    if len(exits) > 1:
        raise EvidenceError(
            f"{directory} tells how a job ended on {len(exits)} nodes",
            "put each ending-*.json into a folder of its own, and judge these",
        )
    attempt = _checked_exit(read_struct(exits[0], AttemptExit), exits[0]) if exits else None
    queried = next(
        (read_struct(file, QueriedNodes) for file in _files(directory, QUERIED_FILE)[:1]), None
    )
    return StoredEvidence(
        tuple(_checked(_load_capture(file), file) for file in captures), attempt, queried
    )


def load_captures(directory: Path) -> tuple[NodeCapture, ...]:
    """Read the captures of a report folder, in order of name; EvidenceError where there is none."""
    captures = load_evidence(directory).captures
    if not captures:
        raise EvidenceError(
            f"there is no capture-*.json in {directory}", "is it a report's folder?"
        )
    return captures


def _files(directory: Path, prefix: str) -> list[Path]:
    places = (directory / "evidence", directory)
    return next((found for found in (_named(place, prefix) for place in places) if found), [])


def _named(folder: Path, prefix: str) -> list[Path]:
    try:
        names = os.listdir(folder)
    except PermissionError as error:
        raise unreadable(folder, error) from error
    except OSError:
        return []
    return sorted(
        folder / name for name in names if name.startswith(prefix) and name.endswith(".json")
    )


def _load_capture(file: Path) -> NodeCapture:
    capture = read_struct(file, NodeCapture)
    if capture.schema != CAPTURE_SCHEMA:
        raise EvidenceError(f"{file} is of schema {capture.schema[:60]!r}", newer(CAPTURE_SCHEMA))
    return capture


def newer(schema: str) -> str:
    """Advice for a file of another schema version. `schema`: the one that this mldebug reads."""
    return f"this mldebug reads {schema}; read it with the version that wrote it"


# --- numbers that cannot be ------------------------------------------------------------------------


def _checked(capture: NodeCapture, file: Path) -> NodeCapture:
    ranks = [rank.identity.rank for rank in capture.ranks]
    if not ranks and not capture.job.lost:
        raise EvidenceError(f"{file} shows no rank, so there is nothing to judge", DAMAGED)
    _check_ranks(ranks, capture.job.world_size, file)
    if wrong := wrong_numbers(capture):
        raise EvidenceError(f"{file} {wrong}", DAMAGED)
    return capture


def _checked_exit(attempt: AttemptExit, file: Path) -> AttemptExit:
    known = [one.rank for one in attempt.identities]
    ended = [one.rank for one in attempt.exits]
    _check_ranks([*known, *ended, *attempt.living], attempt.job.world_size, file)
    for one in attempt.exits:
        _check_time(one.at, file)
        if one.status is not None and not 0 <= one.status <= 0xFFFF:
            raise EvidenceError(
                f"{file} gives rank {one.rank} the exit status word {one.status}", DAMAGED
            )
    if not attempt.exits:
        raise EvidenceError(f"{file} tells of no exit", DAMAGED)
    return attempt


def _check_ranks(ranks: list[int], world: int, file: Path) -> None:
    if wrong := wrong_ranks(ranks, world):
        raise EvidenceError(f"{file} {wrong}", DAMAGED)


def _check_time(at: float, file: Path) -> None:
    if wrong := wrong_time(at):
        raise EvidenceError(f"{file} {wrong}", DAMAGED)
