"""Time lines of jobs over nodes and restarts, histories of nodes, and whether to start again; each user sees his own jobs alone."""

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.core.errors import AccessError, UsageError
from mldebug.fleet.answers.jobs import JobTimeline, job_list
from mldebug.fleet.answers.lemons import lemons
from mldebug.fleet.answers.nodes import history
from mldebug.fleet.answers.retry import CODES, RetryAdvice, advice, advice_lines
from mldebug.fleet.events import AnyEvent, with_id
from mldebug_agents.fleet.hub.answerer import Answerer
from mldebug_agents.fleet.hub.stores.sqlite import SqliteStore
from shared.fleet.fleet_events import (
    DAY,
    HOUR,
    NOW,
    attempt,
    checkpoint,
    fault,
    gpu,
    health,
    incident,
    over,
    probe,
)


def in_order(*events: AnyEvent) -> list[AnyEvent]:
    return sorted(events, key=lambda one: one.at)


def failed(number: int, began: float, node: str = "n1", **more: Any) -> tuple[AnyEvent, ...]:
    """An attempt of an hour that failed, with its incident."""
    verdict = more.pop("verdict", "rank_exited")
    end = began + HOUR
    done = attempt(node, number, began, ended=end, at=end, outcome="failed", gpu_seconds={"productive": 1800.0, "stall": 1800.0}, revision=2)  # fmt: skip
    why = incident(f"i{number}-{began:.0f}", node, verdict=verdict, incident_kind="abnormal_end", since=end - 5, at=end - 5, **more)  # fmt: skip
    return attempt(node, number, began), done, why


def line(*events: AnyEvent) -> JobTimeline:
    (found,) = job_list(in_order(*events)).jobs
    return found


# --- jobs ------------------------------------------------------------------------------------------


def test_all_attempts_of_a_job_stand_on_one_line_with_the_reason_of_each_end() -> None:
    began = NOW - 10 * HOUR
    found = line(
        *failed(0, began), *failed(1, began + 2 * HOUR), attempt(number=2, began=NOW - HOUR)
    )
    assert [(one.attempt, one.outcome) for one in found.attempts] == [(0, "failed"), (1, "failed"), (2, "running")]  # fmt: skip
    assert found.attempts[0].reason == "GPU 3 has fallen off the bus"
    assert found.attempts[0].report != found.attempts[1].report
    assert (found.failed, found.gpu_hours, found.productive_ratio) == (2, 2.0, 0.5)


def test_the_nodes_of_one_attempt_are_one_attempt() -> None:
    parts = [attempt(f"n{number}", 0, NOW + number, run=f"r{number}", subject=f"a/{number}", ended=NOW + 900 + number, gpu_seconds={"productive": 3600.0})
             for number in range(1, 5)]  # fmt: skip
    (one,) = line(*parts).attempts
    assert (one.nodes, one.gpu_hours, one.seconds) == ("n[1-4]", 4.0, 903.0)
    half = [*parts[:3], attempt("n4", 0, NOW + 4, run="r4", subject="a/4")]
    assert line(*half).attempts[0].outcome == "running"


def test_two_launches_with_the_same_attempt_number_are_two() -> None:
    first, second = attempt(number=0, began=NOW), attempt(number=0, began=NOW + DAY, run="r2", subject="attempt/r2/0")  # fmt: skip
    assert len(line(first, second).attempts) == 2


def test_one_node_that_failed_has_failed_the_attempt() -> None:
    well = attempt("n1", ended=NOW + 9, outcome="well")
    bad = attempt("n2", ended=NOW + 9, outcome="failed", subject="attempt/r2/0", run="r2")
    assert line(well, bad).attempts[0].outcome == "failed"


def test_a_stall_that_the_job_overcame_is_no_reason_of_its_end() -> None:
    stall = over(incident(since=NOW + 60, at=NOW + 60, outcome="recovered"), NOW + 90)
    done = attempt(ended=NOW + 100, outcome="well", at=NOW + 100)
    assert line(stall, done).attempts[0].reason == ""


def test_jobs_of_one_name_of_two_users_are_two_jobs() -> None:
    other = attempt("n2", uid=2000, user="bob", subject="attempt/r9/0", run="r9")
    assert len(job_list(in_order(attempt(), other)).jobs) == 2


def test_tens_of_thousands_of_attempts_and_incidents_of_one_job_cost_their_number() -> None:
    """8,000 attempts took 4.3 s of the hub and 200 with 50,000 incidents 8.5 s, which grew with the square and the product."""
    base, why = attempt("bad", began=NOW - HOUR), incident("i", "bad", since=NOW - 60, at=NOW - 50)
    attempts = [msgspec.structs.replace(base, attempt=number, ended=NOW) for number in range(20_000)]  # fmt: skip
    same = [msgspec.structs.replace(base, run=f"r{number}", ended=NOW) for number in range(20_000)]
    incidents = [msgspec.structs.replace(why, incident=f"i{number}") for number in range(20_000)]
    before = time.process_time()
    for events in (attempts, same):
        (found,) = job_list([*events, *incidents]).jobs
        assert len(found.attempts) == 200
    assert time.process_time() - before < 4


# --- nodes -----------------------------------------------------------------------------------------


def test_the_history_of_a_node_has_all_that_speaks_of_it_the_newest_first() -> None:
    events = in_order(
        health("n2", NOW - 9 * DAY, gpu(1, "s1")),
        fault("n2", NOW - 8 * DAY, gpu(1, "s1")),
        over(fault("n2", NOW - 8 * DAY, gpu(1, "s1")), NOW - 7 * DAY),
        health("n2", NOW - 6 * DAY, gpu(2, "s2")),
        probe("n2", NOW - 5 * DAY, trend="shifted", change=-0.2),
        incident(blamed="n2"),
        fault("n3"),
    )
    found = history("n2", events, lemons(events, NOW))
    assert [one.kind for one in found.entries] == ["incident", "probe", "gpu_in", "gpu_out", "hardware_fault"]  # fmt: skip
    assert found.entries[-1].ended.startswith("2026-11-14")
    assert found.gpus == ("NVIDIA H100 s2",)
    assert found.score is not None


# --- start it again? -------------------------------------------------------------------------------


def advised(*events: AnyEvent, at: float = NOW) -> RetryAdvice:
    ordered = in_order(*events)
    found = next(one for one in job_list(ordered).jobs if one.job == "train.py")
    own = [one for one in ordered if one.job == "train.py"]
    return advice(found, own, ordered, lemons(ordered, at), at)


AN_HOUR_AGO = NOW - 2 * HOUR


def test_after_a_single_failure_of_the_program_it_is_safe_and_says_where_it_resumes() -> None:
    found = advised(*failed(0, AN_HOUR_AGO), checkpoint(5, AN_HOUR_AGO + 60))
    assert (found.standing, found.resume_from) == ("safe", "/ckpt/step_5")
    assert CODES[found.standing] == 0


def test_after_a_gpu_fault_it_is_safe_without_the_node() -> None:
    found = advised(*failed(0, AN_HOUR_AGO, verdict="gpu_fault"))
    assert (found.standing, found.without) == ("safe_without_nodes", "n2")
    assert next(advice_lines(found)) == "train.py: safe without n2"


@pytest.mark.parametrize("name", ["$(reboot)", "n1;reboot", "--array=0-9999", "n9 n8", "n1\n", "n[0-99]"])  # fmt: skip
def test_what_is_no_node_s_name_is_not_passed_on_to_slurm(name: str) -> None:
    """Any node with the key may send an incident of the job; what is advised stands on a command line."""

    def without(blamed: str) -> str:
        end = AN_HOUR_AGO + HOUR
        lie = incident("lie", "bad", blamed, incident_kind="abnormal_end", since=end - 4, at=end - 1)  # fmt: skip
        return advised(*failed(0, AN_HOUR_AGO), lie).without

    assert (without(name), without("n9")) == ("", "n9")


def test_a_guess_excludes_no_node() -> None:
    assert (
        advised(*failed(0, AN_HOUR_AGO, verdict="gpu_fault", confidence="low")).standing == "safe"
    )


def test_lemons_and_nodes_that_are_ill_or_silent_are_left_out() -> None:
    ill = advised(*failed(0, AN_HOUR_AGO), fault("n1", NOW - 60))
    assert (ill.standing, ill.without) == ("safe_without_nodes", "n1")
    assert advised(*failed(0, AN_HOUR_AGO), fault("n7", NOW - 60)).standing == "safe"
    silent = advised(*failed(0, NOW - DAY), health("n1", NOW - DAY))
    assert silent.without == "n1"
    assert "nothing has been heard of it" in silent.evidence[-1]


def test_what_fails_the_same_way_three_times_is_not_safe() -> None:
    three = [each for number in range(3) for each in failed(number, NOW - (9 - 2 * number) * HOUR)]
    assert advised(*three).standing == "not_safe"
    assert advised(*three[:6]).standing == "safe"
    other = failed(2, NOW - 5 * HOUR, verdict="out_of_memory")
    assert advised(*three[:6], *other).standing == "safe"
    hardware = [each for number in range(3) for each in failed(number, NOW - (9 - 2 * number) * HOUR, verdict="gpu_fault")]  # fmt: skip
    assert advised(*hardware).standing == "safe_without_nodes"


def test_trouble_that_several_jobs_have_is_waited_for() -> None:
    ours = failed(0, NOW - HOUR - 60, verdict="storage_fault")
    theirs = incident("i9", "n8", verdict="storage_fault", job="other.py", uid=7, at=NOW - 30, since=NOW - 30)  # fmt: skip
    found = advised(*ours, theirs)
    assert (found.standing, found.not_before) == ("not_before", "2026-11-21T06:01:10.000Z")
    assert advised(*ours).standing == "safe"
    alone = [msgspec.structs.replace(theirs, node="n1"), msgspec.structs.replace(theirs, node="n1", id="2" * 32, job="third.py", incident="i10")]  # fmt: skip
    assert advised(*ours, *alone).standing == "safe"  # one node holds up nobody's job
    assert advised(*ours, theirs, at=NOW + HOUR).standing == "safe"


def test_what_runs_is_not_to_be_started_again() -> None:
    assert advised(attempt()).standing == "running"


def test_a_newer_checkpoint_that_is_not_whole_is_named() -> None:
    broken = checkpoint(6, AN_HOUR_AGO + 99, "incomplete", why="shard 3 of 4 is missing")
    found = advised(*failed(0, AN_HOUR_AGO), checkpoint(5, AN_HOUR_AGO + 60), broken)
    assert found.resume_from == "/ckpt/step_5"
    assert "its newest checkpoint step_6 is not complete: shard 3 of 4 is missing" in found.evidence


def test_every_standing_has_a_code_of_its_own() -> None:
    assert len(set(CODES.values())) == len(CODES)
    assert not set(CODES.values()) & {1, 2, 3, 70}


# --- rights ----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Fleet:
    answerer: Answerer
    store: SqliteStore


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    store = SqliteStore(tmp_path)
    store.open()
    secret = failed(0, AN_HOUR_AGO, "n5", verdict="gpu_fault", job="secret.py", uid=2000, sentence="secret.py hangs")  # fmt: skip
    theirs = [with_id(msgspec.structs.replace(one, job="secret.py", uid=2000, run="r2")) for one in secret]  # fmt: skip
    ran = attempt(
        "n2",
        job="secret.py",
        uid=2000,
        began=AN_HOUR_AGO,
        run="r2",
        ended=NOW - HOUR,
        outcome="failed",
    )
    store.add([failed(0, AN_HOUR_AGO), theirs, [ran]], NOW)
    yield Fleet(Answerer(store, lambda: NOW), store)
    store.close()


def test_an_operator_sees_all_jobs_and_a_user_his_own(fleet: Fleet) -> None:
    assert {one.job for one in fleet.answerer.jobs(None).jobs} == {"train.py", "secret.py"}
    assert {one.job for one in fleet.answerer.jobs(1000).jobs} == {"train.py"}
    assert fleet.answerer.jobs(-1).jobs == ()
    assert fleet.answerer.jobs(1000, "secret.py").jobs == ()
    assert fleet.answerer.jobs(1000, "r2").jobs == ()
    assert [one.job for one in fleet.answerer.jobs(1000, "r1").jobs] == ["train.py"]


def test_a_user_gets_advice_for_his_own_jobs_alone(fleet: Fleet) -> None:
    assert fleet.answerer.retry(1000, "train.py").standing == "safe"
    with pytest.raises(UsageError, match=r"no job 'secret\.py' of yours"):
        fleet.answerer.retry(1000, "secret.py")
    assert fleet.answerer.retry(None, "secret.py").standing == "safe_without_nodes"


def test_nothing_of_another_users_job_is_in_a_users_answer(fleet: Fleet) -> None:
    answers = (fleet.answerer.jobs(1000), fleet.answerer.retry(1000, "train.py"))
    assert b"secret" not in msgspec.json.encode(answers)


def test_lemons_and_histories_of_nodes_are_for_operators(fleet: Fleet) -> None:
    for question in (fleet.answerer.lemons, lambda uid: fleet.answerer.node(uid, "n2")):
        with pytest.raises(AccessError):
            question(1000)
    assert [one.node for one in fleet.answerer.lemons(None).nodes] == ["n2"]
    assert fleet.answerer.node(None, "n2").entries
    with pytest.raises(UsageError, match="nothing was heard"):
        fleet.answerer.node(None, "n99")
