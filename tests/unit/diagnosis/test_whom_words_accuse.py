"""Whom last words accuse: texts of each family of libraries, with whom they blame and whom they name."""

import time
from typing import Any

import msgspec
import pytest

from mldebug.diagnosis.exits.model import Accusation
from mldebug.diagnosis.exits.words.accusations import accusation_of
from mldebug.diagnosis.exits.words.blame import Blame, blame_of, blame_of_chain
from shared.diagnosis.fieldcases import FIELD

PHRASES: dict[str, list[dict[str, Any]]] = msgspec.yaml.decode((FIELD / "phrases.yaml").read_bytes())  # fmt: skip


TEXTS = [
    pytest.param(text, id=f"{family} {number}")
    for family, texts in PHRASES.items()
    for number, text in enumerate(texts)
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_library_s_words_accuse_whom_they_accuse(text: dict[str, Any]) -> None:
    assert blame_of(text["words"]) is Blame(text["blame"])


@pytest.mark.parametrize("text", TEXTS)
def test_whom_they_name_is_read(text: dict[str, Any]) -> None:
    named = accusation_of(text["words"]) or Accusation()
    if text["blame"] == "own":
        return  # nobody asks
    assert list(named.ranks) == text.get("ranks", [])
    assert sorted(named.calls) == text.get("calls", [])
    assert list(named.pids) == text.get("pids", [])
    if not named.ranks and not named.calls and not named.pids:
        assert list(named.addresses) == text.get("addresses", [])


def test_each_family_has_ten_texts_with_their_source() -> None:
    assert not [family for family, texts in PHRASES.items() if len(texts) < 10]
    assert all(text["source"] for texts in PHRASES.values() for text in texts)
    every = [text["words"] for texts in PHRASES.values() for text in texts]
    assert len(every) == len(set(every))


@pytest.mark.parametrize(
    ("first", "last", "explicit", "blame"),
    [
        (Blame.PEER, Blame.OWN, True, Blame.PEER),  # a framework wraps it: "training failed"
        (Blame.PEER, Blame.OWN, False, Blame.PEER),  # cleaning up failed, too
        (Blame.OWN, Blame.PEER, True, Blame.OWN),
        (Blame.OWN, Blame.PEER, False, Blame.UNCLEAR),  # an everyday one, in whose handler a peer was lost
        (Blame.OWN, Blame.OWN, False, Blame.OWN),
        (Blame.UNCLEAR, Blame.OWN, False, Blame.UNCLEAR),
        (Blame.OWN, Blame.UNCLEAR, False, Blame.UNCLEAR),
    ],
)  # fmt: skip
def test_what_began_a_chain_of_exceptions_counts(
    first: Blame, last: Blame, explicit: bool, blame: Blame
) -> None:
    assert blame_of_chain(first, last, explicit=explicit) is blame


@pytest.mark.parametrize("piece", ["\n", " ", "/job:a ", "[1, ", "ActorDiedError\n", "Missing ranks:1: [", "- Process 1: [", "Rank 1, ", "from remote peer "])  # fmt: skip
def test_no_text_of_a_job_holds_the_reader_up(piece: str) -> None:
    """Of 8 KiB, in CPU time: a pattern that tries every beginning at every end needs seconds."""
    text = (piece * 8192)[:8192]
    began = time.process_time()
    blame_of(text)
    accusation_of(text)
    assert time.process_time() - began < 1.0
