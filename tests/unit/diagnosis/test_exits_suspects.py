"""Whom the words of all victims accuse together, and when they name nobody."""

import signal

import msgspec
import pytest

from mldebug.core.model import Confidence, Job, RankIdentity, Verdict
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import (
    Accusation,
    AttemptExit,
    KernelDeath,
    RankError,
    RankExit,
)
from mldebug.diagnosis.exits.outcome import ExitOutcome

ONE, TERM = 1 << 8, int(signal.SIGTERM)
MISSED = "did not come to the monitored barrier"


def victim(**accuses: object) -> RankError:
    return RankError(error="RuntimeError: x", blames_peer=True, accuses=Accusation(**accuses))  # type: ignore[arg-type]


def attempt(errors: dict[int, RankError], *, world: int = 4, here: int = 4) -> AttemptExit:
    """Ranks with an error exit with 1, one after another; the others are ended by the launcher."""
    ranks = tuple(RankIdentity(rank=r, world_size=world, pid=100 + r, node="n1") for r in range(here))  # fmt: skip
    order = [*errors, *(r for r in range(here) if r not in errors)]
    exits = tuple(
        RankExit(rank=r, pid=100 + r, at=1000.0 + n, moment=n, status=ONE if r in errors else TERM)
        for n, r in enumerate(order)
    )
    job = Job(id="j", name="train.py", launcher="torchrun", world_size=world, ranks=ranks)
    return AttemptExit(job=job, identities=ranks, exits=exits, errors=errors)


def named(outcome: ExitOutcome) -> tuple[str, list[int | None], str]:
    assert outcome.finding is not None
    found = outcome.finding
    return found.verdict, [one.rank for one in found.culprits], found.confidence


def pair(mine: int, its: int, odd: int = 2) -> RankError:
    """DETAIL's words: what the speaker runs, and what another one does."""
    call = {rank: "BROADCAST" if rank == odd else "ALLREDUCE" for rank in (mine, its)}
    return victim(speaker=mine, calls=call, did="called something else")


def test_a_barrier_s_words_make_a_suspect_and_no_culprit() -> None:
    found = judge_exit(attempt({0: victim(ranks=(2,), speaker=0, did=MISSED)}))
    assert named(found) == (Verdict.UNKNOWN, [2], Confidence.LOW)
    assert f"by the words of rank 0, rank 2 {MISSED}" in found.sentence
    assert "nobody can be named" not in found.sentence


@pytest.mark.parametrize(
    ("errors", "right"),
    [
        ({3: pair(3, 2), 0: pair(0, 2), 1: pair(1, 2), 2: pair(2, 0)}, ([2], Confidence.MEDIUM)),
        ({2: pair(2, 0), 0: pair(0, 2), 1: pair(1, 2), 3: pair(3, 2)}, ([2], Confidence.MEDIUM)),
        # before the launcher ended the others: three of four are known to be alike
        ({3: pair(3, 2), 0: pair(0, 2), 1: pair(1, 2)}, ([2], Confidence.MEDIUM)),
        # one pair, before the launcher ended the others: nobody knows which of both is odd
        ({3: pair(3, 2)}, ([], Confidence.LOW)),
        ({2: pair(2, 0)}, ([], Confidence.LOW)),
        # two that are alike, of four: one sign
        ({0: pair(0, 2), 3: pair(3, 2)}, ([2], Confidence.LOW)),
        # each accuses the other
        ({3: pair(3, 2), 2: pair(2, 3)}, ([], Confidence.LOW)),
    ],
)
def test_calls_of_all_are_compared_whoever_speaks_first(
    errors: dict[int, RankError], right: tuple[list[int], Confidence]
) -> None:
    _, who, confidence = named(judge_exit(attempt(errors)))
    assert (who, confidence) == right


def test_a_majority_here_is_none_of_the_whole_job() -> None:
    errors = {rank: pair(rank, 2) for rank in (0, 1, 3)}
    assert named(judge_exit(attempt(errors, world=64)))[1:] == ([2], Confidence.LOW)


def test_halves_accuse_nobody() -> None:
    """Even ranks call one thing and odd ones another: each text accuses the first that differs."""
    errors = {}
    for rank in range(4):
        other = 1 if rank % 2 == 0 else 0
        calls = {one: "A" if one % 2 == 0 else "B" for one in (rank, other)}
        errors[rank] = victim(speaker=rank, calls=calls, did="called something else")
    assert named(judge_exit(attempt(errors)))[1:] == ([], Confidence.LOW)


def test_numbers_of_a_smaller_group_name_nobody() -> None:
    """Rank 3 speaks of itself as number 1: number 2 is not rank 2."""
    assert named(judge_exit(attempt({3: victim(ranks=(2,), speaker=1, did=MISSED)})))[1] == []


def test_victims_that_disagree_name_nobody() -> None:
    errors = {0: victim(ranks=(2,), did="x"), 1: victim(ranks=(3,), did="x")}
    assert named(judge_exit(attempt(errors)))[1] == []


def test_most_of_those_who_name_somebody_decide() -> None:
    errors = {0: victim(ranks=(2,), did="x"), 1: victim(ranks=(2,), did="x"), 3: victim(ranks=(1,), did="x")}  # fmt: skip
    assert named(judge_exit(attempt(errors)))[1:] == ([2], Confidence.LOW)


def test_a_process_is_the_rank_that_has_it() -> None:
    assert named(judge_exit(attempt({0: victim(pids=(103,), did="is gone")})))[1] == [3]
    assert named(judge_exit(attempt({0: victim(pids=(999,), did="is gone")})))[1] == []


def test_a_rank_of_another_node_can_be_accused() -> None:
    outcome = judge_exit(attempt({0: victim(ranks=(9,), did="sends no heartbeat")}, world=16))
    assert named(outcome)[1] == [9]
    assert named(judge_exit(attempt({0: victim(ranks=(99,), did="x")}, world=16)))[1] == []


def test_a_name_without_proof_that_victims_contradict_is_one_sign() -> None:
    errors = {0: victim(ranks=(2,), did=MISSED)}
    job = attempt(errors)
    bare = msgspec.structs.replace(
        job,
        exits=tuple(
            msgspec.structs.replace(one, status=3 << 8, moment=-1) if one.rank == 3 else one
            for one in job.exits
        ),
    )
    found = judge_exit(bare)
    assert named(found)[2] is Confidence.LOW
    assert MISSED in found.sentence


def test_an_error_of_its_own_stands_against_all_words() -> None:
    own = RankError(error="ValueError: bad shard 7", source="its own output")
    errors = {0: victim(ranks=(2,), did=MISSED), 3: own}
    assert named(judge_exit(attempt(errors))) == (Verdict.RANK_EXITED, [3], Confidence.HIGH)


def test_a_kill_proves_nothing_against_whom_others_accuse() -> None:
    """Who sent SIGKILL is not known: where a victim accuses another rank, it is no more than one sign; a line of the kernel is."""
    accused = attempt({0: victim(ranks=(2,), speaker=0, did=MISSED)})
    killed = RankExit(rank=1, pid=101, at=999.0, moment=-1, status=int(signal.SIGKILL))
    exits = (killed, *(one for one in accused.exits if one.rank != 1))
    found = judge_exit(msgspec.structs.replace(accused, exits=exits))
    assert named(found) == (Verdict.RANK_EXITED, [1], Confidence.LOW)
    assert f"but by the words of rank 0, rank 2 {MISSED}" in found.sentence
    death = KernelDeath(pid=101, kind="out_of_memory", text="Out of memory: Killed process 101")
    sure = msgspec.structs.replace(accused, exits=exits, deaths=(death,), kernel_readable=True)
    assert named(judge_exit(sure)) == (Verdict.OUT_OF_MEMORY, [1], Confidence.HIGH)
